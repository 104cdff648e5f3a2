//! `weir show`.

use clap::Args;
use thiserror::Error;

use weir_domain::ids::ReservationId;

use super::beside::{block_on, open_ledger};
use super::{ConfigArgs, Failure, Output};
use crate::events::EventSource;
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
#[error("there is no reservation {id} in {folder}; name another data folder with --data")]
struct NoSuchReservation {
    id: ReservationId,
    folder: String,
}

pub(super) fn run(args: &ShowArgs, output: &Output) -> Result<(), Failure> {
    let data = args.config.data_folder()?;
    let ledger = open_ledger(&data)?;
    let story = block_on(Story::read(&EventSource::Files(data.log()), &ledger, args.reservation))?;
    let Some(story) = story.map_err(|error| Failure::failed(&error))? else {
        let folder = data.path().display().to_string();
        return Err(Failure::missing(&NoSuchReservation { id: args.reservation, folder }));
    };
    if output.is_json {
        let story = serde_json::to_string_pretty(&story).map_err(|error| Failure::failed(&error))?;
        return output.line(&story);
    }
    output.line(story.to_string().trim_end())
}
