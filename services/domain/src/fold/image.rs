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
    /// Those that do not follow from their reservations.
    accounts: Vec<(ReservationId, ReservationAccount)>,
}

impl Fold {
    #[must_use]
    pub fn image(&self) -> FoldImage {
        let image = |(tenant, book): &(TenantId, Book)| TenantImage {
            tenant: tenant.clone(),
            book: book.image(),
            accounts: Vec::new(),
        };
        let mut tenants: Vec<TenantImage> = self.books.iter().map(image).collect();
        for (id, folded) in &self.folded {
            if let Some(account) = &folded.account {
                tenants[folded.book as usize].accounts.push((*id, ReservationAccount::clone(account)));
            }
        }
        for image in &mut tenants {
            image.accounts.sort_by_key(|(id, _)| *id);
        }
        tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        FoldImage { options: self.options, tenants }
    }

    #[must_use]
    pub fn from_image(image: FoldImage) -> Self {
        let mut fold = Self::new(image.options);
        for TenantImage { tenant, book, accounts } in image.tenants {
            let at = fold.place(&tenant);
            let book = Book::from_image(book);
            fold.folded.extend(book.ids().map(|id| (id, Folded { book: at, account: None })));
            let unusual = |(id, account)| (id, Folded { book: at, account: Some(Box::new(account)) });
            fold.folded.extend(accounts.into_iter().map(unusual));
            fold.books[at as usize].1 = book;
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
