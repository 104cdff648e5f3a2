//! `weir show`.

use clap::Args;
use thiserror::Error;

use weir_domain::ids::ReservationId;

use super::beside::{block_on, open_events, open_ledger};
use super::{ConfigArgs, Failure, Output};
use crate::story::Story;

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// The id in the answer's `x-weir-reservation`.
    #[arg(value_name = "RESERVATION")]
    reservation: ReservationId,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Error)]
#[error("there is no reservation {id} in {place}; name another data folder with --data")]
struct NoSuchReservation {
    id: ReservationId,
    place: String,
}

pub(super) fn run(args: &ShowArgs, output: &Output) -> Result<(), Failure> {
    let Some(story) = block_on(read(args))?? else {
        let place = match args.config.has_servers()? {
            true => "the log".to_owned(),
            false => args.config.data_folder()?.path().display().to_string(),
        };
        return Err(Failure::missing(&NoSuchReservation { id: args.reservation, place }));
    };
    if output.is_json {
        let story = serde_json::to_string_pretty(&story).map_err(|error| Failure::failed(&error))?;
        return output.line(&story);
    }
    output.line(story.to_string().trim_end())
}

async fn read(args: &ShowArgs) -> Result<Option<Story>, Failure> {
    let (events, ledger) = (open_events(&args.config).await?, open_ledger(&args.config).await?);
    Story::read(&events, &*ledger, args.reservation).await.map_err(|error| Failure::failed(&error))
}
