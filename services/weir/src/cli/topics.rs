//! `weir topics`.

use clap::Args;
use serde_json::json;

use weir_streams::Topic;
use weir_streams::topics::{OnPoison, Retention, TopicSpec, Topics};

use super::{ConfigArgs, Failure, Output};
use crate::data::DataFolder;
use crate::records::TopicFiles;

#[derive(Debug, Args)]
pub(super) struct TopicsArgs {
    /// The topics of what consumers could not digest, too.
    #[arg(long)]
    dead_letters: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &TopicsArgs, output: &Output) -> Result<(), Failure> {
    let topics = Topics::bundled().map_err(|error| Failure::failed(&error))?;
    // The table is the same without a log.
    let data = DataFolder::existing(&args.config.load()?.process.data).ok();
    let mut listed = Vec::new();
    for topic in Topic::ALL.into_iter().filter(|topic| args.dead_letters || !topic.is_dead_letters()) {
        let bounds = match &data {
            Some(data) => {
                let bounds = TopicFiles::list(&data.log(), topic).and_then(|files| files.bounds());
                Some(bounds.map_err(|error| Failure::failed(&error))?)
            }
            None => None,
        };
        listed.push((topic, bounds));
    }
    if output.is_json {
        let shown: Vec<_> = listed.iter().map(|(topic, bounds)| shown(&topics, *topic, *bounds)).collect();
        return output.line(&json!({ "topics": shown }).to_string());
    }
    for (topic, bounds) in listed {
        let TopicSpec { purpose, key, partitions, retention, .. } = topics.spec(topic);
        let (name, kept) = (topics.name(topic), kept(*retention));
        let written = match bounds {
            Some((start, end)) => format!("; here {} records, {start} to {end}", end - start),
            None => String::new(),
        };
        output.line(&format!("{name}: {purpose}"))?;
        output.line(&format!("  by {key}, kept {kept}, {partitions} partitions on a cluster{written}"))?;
    }
    Ok(())
}

fn shown(topics: &Topics, topic: Topic, bounds: Option<(u64, u64)>) -> serde_json::Value {
    let TopicSpec { purpose, key, written_by, read_by, partitions, retention, on_poison, .. } = topics.spec(topic);
    json!({
        "name": topics.name(topic),
        "purpose": purpose,
        "key": key,
        "written_by": written_by,
        "read_by": read_by,
        "partitions": partitions,
        "keep": kept(*retention),
        "on_poison": match on_poison {
            OnPoison::ParkKey => "park-key",
            OnPoison::SkipRecord => "skip-record",
        },
        "embedded": bounds.map(|(start, end)| json!({ "start": start, "end": end })),
    })
}

fn kept(retention: Retention) -> String {
    match retention {
        Retention::Forever => "forever".to_owned(),
        Retention::Days(days) => format!("{days}d"),
        Retention::Compacted => "compacted".to_owned(),
    }
}
