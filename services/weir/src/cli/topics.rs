//! `weir topics`, and `weir topics apply`.

use clap::{Args, Subcommand};
use serde_json::json;

use weir_streams::Topic;
use weir_streams::topics::{OnPoison, Retention, TopicSpec, Topics};

use super::{ConfigArgs, Failure, Output, failure};
use crate::data::DataFolder;
use crate::records::TopicFiles;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct TopicsArgs {
    #[command(subcommand)]
    act: Option<Act>,
    /// The topics of what consumers could not digest, too.
    #[arg(long)]
    dead_letters: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Create what is missing on the brokers and compare the rest. Nothing is ever deleted, and no partition count is
    /// changed: what differs is told, with the fix.
    Apply(ApplyArgs),
}

#[derive(Debug, Args)]
struct ApplyArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

#[cfg(feature = "kafka")]
fn apply(args: &ApplyArgs, output: &Output) -> Result<(), Failure> {
    use weir_streams::kafka::topics::{self, Found};

    let Some(options) = args.config.load()?.log.kafka else {
        let message = "the log is in the data folder, which needs no topics; add [log.kafka] for one on brokers";
        return Err(Failure::new(failure::USAGE, message.to_owned()));
    };
    let table = options.topics().map_err(|error| Failure::failed(&error))?;
    let states = super::beside::block_on(topics::apply(&options, &table))?.map_err(|error| Failure::missing(&error))?;
    let shown = |found: &Found| format!("{found:?}");
    if output.is_json {
        let states: Vec<_> = states
            .iter()
            .map(|state| json!({ "name": state.name, "partitions": state.partitions, "found": shown(&state.found) }))
            .collect();
        output.line(&json!({ "topics": states }).to_string())?;
    } else {
        for state in &states {
            output.line(&format!("{}, {} partitions: {}", state.name, state.partitions, shown(&state.found)))?;
        }
    }
    let broken: Vec<String> = states
        .iter()
        .flat_map(|state| state.broken().map(move |difference| format!("{}: {difference}", state.name)))
        .collect();
    if broken.is_empty() { Ok(()) } else { Err(Failure::new(failure::FAILED, broken.join("; "))) }
}

#[cfg(not(feature = "kafka"))]
fn apply(_: &ApplyArgs, _: &Output) -> Result<(), Failure> {
    let message = "this weir was built without its Kafka client: build it with the feature `kafka`";
    Err(Failure::new(failure::USAGE, message.to_owned()))
}

pub(super) fn run(args: &TopicsArgs, output: &Output) -> Result<(), Failure> {
    if let Some(Act::Apply(args)) = &args.act {
        return apply(args, output);
    }
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
