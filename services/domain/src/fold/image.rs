//! A fold as stored bytes: the content of a checkpoint (design section 9).

use serde::{Deserialize, Serialize};

use crate::ids::{ReservationId, TenantId};
use crate::ledger::ReservationAccount;
use crate::quota::{Book, BookImage, BookOptions};

use super::{Fold, Folded};

/// Everything of a [`Fold`], sorted: equal folds give equal images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldImage {
    options: BookOptions,
    tenants: Vec<TenantImage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TenantImage {
    tenant: TenantId,
    book: BookImage,
    accounts: Vec<(ReservationId, ReservationAccount)>,
}

impl Fold {
    #[must_use]
    pub fn image(&self) -> FoldImage {
        let mut tenants: Vec<TenantImage> = self
            .books
            .iter()
            .map(|(tenant, book)| TenantImage { tenant: tenant.clone(), book: book.image(), accounts: Vec::new() })
            .collect();
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        for (id, folded) in &self.folded {
            if let Ok(at) = tenants.binary_search_by(|image| image.tenant.cmp(&folded.tenant)) {
                tenants[at].accounts.push((*id, folded.account.clone()));
            }
        }
        for image in &mut tenants {
            image.accounts.sort_by_key(|(id, _)| *id);
        }
        FoldImage { options: self.options, tenants }
    }

    #[must_use]
    pub fn from_image(image: FoldImage) -> Self {
        let mut fold = Self::new(image.options);
        for TenantImage { tenant, book, accounts } in image.tenants {
            fold.books.insert(tenant.clone(), Book::from_image(book));
            let of_tenant = |(id, account)| (id, Folded { tenant: tenant.clone(), account });
            fold.folded.extend(accounts.into_iter().map(of_tenant));
        }
        fold
    }
}

impl FoldImage {
    /// What the fold was made with; under other options the same log gives another fold.
    #[must_use]
    pub const fn options(&self) -> BookOptions {
        self.options
    }
}
