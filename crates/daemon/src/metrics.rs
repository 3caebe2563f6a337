//! What is counted and measured, for `/metrics`. Owns the names; decides nothing and remembers
//! nothing over a restart. No label ever holds a run's id.

use std::sync::Arc;
use std::time::Duration;

use kennel_process::{Cause, Verdict};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::live::Live;
use crate::store::Line;
use crate::store::format::{Detail, Ended};
use crate::store::kept::{KeptRun, Standing};

/// From 100 us to 3.3 s.
const COMMIT_BUCKETS: u16 = 16;
/// From 250 us to 137 min: graces are in it.
const STOP_BUCKETS: u16 = 26;

/// Every metric. Copies are the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<All>);

#[derive(Debug)]
struct All {
    registry: Registry,
    runs: Family<ByState, Gauge>,
    ended: Family<ByCause, Counter>,
    survivors: Gauge,
    commit: Histogram,
    stop: Histogram,
    adopted: Counter,
    lost: Counter,
    delivered: Family<ByKind, Counter>,
    not_delivered: Family<ByKind, Counter>,
    dead_letters: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByKind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCause {
    cause: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut all = All {
            registry: Registry::with_prefix("kennel"),
            runs: Family::default(),
            ended: Family::default(),
            survivors: Gauge::default(),
            commit: Histogram::new(exponential_buckets(0.0001, 2.0, COMMIT_BUCKETS)),
            stop: Histogram::new(exponential_buckets(0.000_25, 2.0, STOP_BUCKETS)),
            adopted: Counter::default(),
            lost: Counter::default(),
            delivered: Family::default(),
            not_delivered: Family::default(),
            dead_letters: Counter::default(),
        };
        let r = &mut all.registry;
        r.register("runs", "Runs that are not dead, by state", all.runs.clone());
        r.register("runs_ended", "Runs that ended since the daemon started", all.ended.clone());
        r.register("survivors", "Processes that could not be ended", all.survivors.clone());
        let what = "Time to make facts durable";
        r.register_with_unit("journal_commit", what, Unit::Seconds, all.commit.clone());
        let what = "Time from a stop's first signal to its proof";
        r.register_with_unit("stop_to_proof", what, Unit::Seconds, all.stop.clone());
        let what = "Runs taken back from an earlier daemon, or after their connection broke";
        r.register("runs_adopted", what, all.adopted.clone());
        r.register("runs_lost", "Runs nobody could account for", all.lost.clone());
        let what = "Notices that channels delivered, by their kind";
        r.register("channel_delivered", what, all.delivered.clone());
        let what = "Tries of channels that failed, by their kind";
        r.register("channel_failed", what, all.not_delivered.clone());
        r.register("dead_letters", "Notices that channels gave up on", all.dead_letters.clone());
        Self(Arc::new(all))
    }

    /// A channel of this kind has delivered something.
    pub(crate) fn delivered(&self, kind: &'static str) {
        self.0.delivered.get_or_create(&ByKind { kind }).inc();
    }

    /// A try of a channel of this kind has failed.
    pub(crate) fn not_delivered(&self, kind: &'static str) {
        self.0.not_delivered.get_or_create(&ByKind { kind }).inc();
    }

    /// A channel has given up on so many notices.
    pub(crate) fn dead_letters(&self, count: u64) {
        self.0.dead_letters.inc_by(count);
    }

    pub(crate) fn commit_took(&self, time: Duration) {
        self.0.commit.observe(time.as_secs_f64());
    }

    pub(crate) fn adopted(&self) {
        self.0.adopted.inc();
    }

    /// A run changed by this line of the journal.
    pub(crate) fn changed(&self, run: &KeptRun, line: &Line) {
        let Detail::Ended(ended) = &*line.detail else { return };
        let Ended::Recorded(end) = &**ended else {
            self.0.ended.get_or_create(&ByCause { cause: "never_started" }).inc();
            return;
        };
        match &end.verdict {
            Verdict::Lost(_) => drop(self.0.lost.inc()),
            Verdict::Dead(proof) => {
                if matches!(end.cause, Cause::Stopped | Cause::Killed | Cause::Limit(_)) {
                    self.0.stop.observe(proof.effort().total().as_secs_f64());
                }
            }
        }
        if run.state == Standing::Dead {
            self.0.ended.get_or_create(&ByCause { cause: cause_word(&end.cause) }).inc();
        }
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self, live: &Live) -> Result<String, std::fmt::Error> {
        let runs = live.all();
        for state in Standing::ALL.into_iter().filter(|state| *state != Standing::Dead) {
            let count = runs.iter().filter(|run| run.state == state).count();
            self.0.runs.get_or_create(&ByState { state: state.word() }).set(count as i64);
        }
        let stuck = runs.iter().filter(|run| run.state == Standing::Stuck);
        let left = stuck.filter_map(|run| run.stuck.as_ref()).map(|stuck| stuck.count).sum::<u64>();
        self.0.survivors.set(left as i64);
        let mut text = String::new();
        encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

fn cause_word(cause: &Cause) -> &'static str {
    match cause {
        Cause::Exit => "exit",
        Cause::Stopped => "stopped",
        Cause::Killed => "killed",
        Cause::Limit(_) => "limit",
        Cause::Oom(_) => "oom",
        Cause::Lost => "lost",
        Cause::NeverStarted => "never_started",
    }
}
