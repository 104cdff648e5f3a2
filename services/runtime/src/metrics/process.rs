//! What the runtime itself shows: the tasks of a process, by name, and how many panicked.
//!
//! Read from the owner of the tasks at each scrape, so that spawning one counts nothing twice. Open connections are the
//! tasks named `connection`, refused ones those named `refusal`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Metrics;
use crate::tasks::Tasks;

impl Metrics {
    /// Declares `weir_runtime_tasks_running{task}` and `weir_runtime_task_panics_total`. Called once per process.
    pub fn watch_tasks(&self, tasks: &Tasks) {
        let watched = Watched { tasks: tasks.clone() };
        self.declare("runtime", |registry| registry.register_collector(Box::new(watched)));
    }
}

#[derive(Debug)]
struct Watched {
    tasks: Tasks,
}

impl Collector for Watched {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut running =
            encoder.encode_descriptor("tasks_running", "Tasks that have not ended.", None, MetricType::Gauge)?;
        for (name, count) in self.tasks.running() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(running.encode_family(&[("task", name)])?)?;
        }
        let panics = ConstCounter::new(self.tasks.panics());
        panics.encode(encoder.encode_descriptor(
            "task_panics",
            "Tasks that ended in a panic.",
            None,
            panics.metric_type(),
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scrape_shows_what_runs_and_what_panicked() {
        let (metrics, tasks) = (Metrics::new(), Tasks::new());
        metrics.watch_tasks(&tasks);
        let _panicked = tasks.spawn("bad", async { panic!("planted") }).await.is_err();
        tasks.spawn("connection", std::future::pending::<()>());
        tasks.spawn("connection", std::future::pending::<()>());
        let expected = "\
# HELP weir_runtime_tasks_running Tasks that have not ended.
# TYPE weir_runtime_tasks_running gauge
weir_runtime_tasks_running{task=\"connection\"} 2
# HELP weir_runtime_task_panics Tasks that ended in a panic.
# TYPE weir_runtime_task_panics counter
weir_runtime_task_panics_total 1
# EOF
";
        assert_eq!(metrics.encode(), expected);
    }
}
