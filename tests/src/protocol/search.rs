//! Breadth first over every interleaving: the first finding of a kind is one of the shortest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::pool::QuickMap;
use super::rest::RESIDUAL;
use super::scenario::Scenario;
use super::state::{State, Step};
use super::world::World;

/// What a search came to.
#[derive(Debug)]
pub struct Found {
    pub scenario: Scenario,
    pub states: usize,
    pub steps: usize,
    /// States in which nothing more happens by itself.
    pub at_rest: usize,
    /// Different stores and logs among them.
    pub stores: usize,
    pub logs: usize,
    pub took: Duration,
    /// What is wrong, and a shortest way to it. The stated residual risks are apart.
    pub wrong: BTreeMap<&'static str, String>,
    pub residual: BTreeMap<&'static str, String>,
}

/// More states than any scenario of the tests has: about a gigabyte.
const MOST_STATES: usize = 4_000_000;

/// Searches all of `scenario`; with a mutation, only until it is found.
#[must_use]
pub fn search(scenario: &Scenario) -> Found {
    let begun = Instant::now();
    let (mut world, start) = World::new(scenario.clone());
    let mut run = Run { states: vec![start], ways: vec![None], known: QuickMap::from_iter([(start, 0)]) };
    let mut found: BTreeMap<&'static str, String> = BTreeMap::new();
    let (mut at, mut at_rest, mut steps) = (0, 0, 0);
    while at < run.states.len() {
        let state = run.states[at];
        let nexts = world.nexts(&state);
        steps += nexts.len();
        let is_at_rest = nexts.iter().all(|next| next.step.is_fault);
        at_rest += usize::from(is_at_rest);
        let wrong = world.wrong_now(&state).or_else(|| if is_at_rest { world.wrong_at_rest(&state) } else { None });
        if let Some(wrong) = wrong {
            found.entry(wrong).or_insert_with(|| run.way_to(at, None));
        }
        for next in nexts {
            if let Some(wrong) = next.wrong {
                found.entry(wrong).or_insert_with(|| run.way_to(at, Some(next.step)));
            }
            run.meet(next.state, at, next.step);
        }
        if scenario.mutation.is_some() && found.keys().any(|wrong| !wrong.starts_with(RESIDUAL)) {
            break;
        }
        at += 1;
        assert!(run.states.len() < MOST_STATES, "too many states: {}", scenario.name);
    }
    let (residual, wrong) = found.into_iter().partition(|(wrong, _)| wrong.starts_with(RESIDUAL));
    Found {
        scenario: scenario.clone(),
        states: run.states.len(),
        steps,
        at_rest,
        stores: world.books.len(),
        logs: world.logs.len(),
        took: begun.elapsed(),
        wrong,
        residual,
    }
}

struct Run {
    states: Vec<State>,
    /// From which state, by which step.
    ways: Vec<Option<(u32, Step)>>,
    known: QuickMap<State, u32>,
}

impl Run {
    fn meet(&mut self, state: State, from: usize, step: Step) {
        let next = u32::try_from(self.states.len()).expect("fewer states than numbers");
        if *self.known.entry(state).or_insert(next) == next {
            self.states.push(state);
            self.ways.push(Some((u32::try_from(from).expect("a known state"), step)));
        }
    }

    fn way_to(&self, at: usize, last: Option<Step>) -> String {
        let mut steps: Vec<Step> = last.into_iter().collect();
        let mut at = at;
        while let Some((from, step)) = self.ways[at] {
            steps.push(step);
            at = from as usize;
        }
        steps.reverse();
        steps.iter().map(Step::to_string).collect::<Vec<_>>().join(" → ")
    }
}
