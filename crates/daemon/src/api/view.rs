//! From a run as it is kept to a run as it is shown. Owns this one conversion; adds nothing.

use kennel_process::{Cause, End, ExitStatus, Survivor, UnknownStatus, Verdict};

use super::error::start_error;
use super::wire;
use crate::store::KeptRun;
use crate::store::format::{Ended, Stuck};
use crate::time::Time;

pub(crate) fn view(run: &KeptRun) -> wire::Run {
    let started = run.started.as_ref();
    let (end, proof, ended_at) = match &run.ended {
        None => (None, None, None),
        Some(Ended::Recorded(end)) => (Some(end_of(end)), proof_of(end), Some(Time(end.at_ms))),
        Some(Ended::NeverStarted { message, failure, at_ms }) => {
            let end = wire::End {
                cause: wire::Cause::NeverStarted,
                status: wire::Status::Unknown("never_started".to_owned()),
                limit: None,
                error: Some(start_error(failure.as_ref(), message)),
            };
            (Some(end), None, Some(Time(*at_ms)))
        }
    };
    let state = state_of(&run.state);
    let stuck = run.stuck.as_ref().filter(|_| state == wire::State::Stuck);
    wire::Run {
        id: run.id.clone(),
        slot: run.slot.clone(),
        state,
        command: run.request.command.iter().map(|t| t.0.to_string_lossy().into_owned()).collect(),
        cwd: run.request.cwd.0.to_string_lossy().into_owned(),
        pty: run.request.terminal,
        requested_at: Time(run.request.at_ms),
        started_at: started.map(|s| Time(s.at_ms)),
        ended_at,
        containment: started.map(|s| s.containment.to_string()),
        containment_because: started.and_then(|s| s.containment_because.clone()),
        leader: started.map(|s| wire::Process { pid: s.leader.pid }),
        keeper: started.map(|s| wire::Process { pid: s.keeper.pid }),
        stuck_because: stuck.map(|s| s.reason.clone()),
        survivors: stuck.map(survivors_of).unwrap_or_default(),
        end,
        proof,
    }
}

/// The store's own check allows no other word.
fn state_of(word: &str) -> wire::State {
    match word {
        "starting" => wire::State::Starting,
        "running" => wire::State::Running,
        "stopping" => wire::State::Stopping,
        "dead" => wire::State::Dead,
        _ => wire::State::Stuck,
    }
}

fn end_of(end: &End) -> wire::End {
    let (cause, limit) = match &end.cause {
        Cause::Exit => (wire::Cause::Exit, None),
        Cause::Stopped => (wire::Cause::Stopped, None),
        Cause::Killed => (wire::Cause::Killed, None),
        Cause::Limit(reached) => {
            let kind = reached.kind.clone();
            let limit = wire::Limit { kind, used: reached.used, max: reached.max };
            (wire::Cause::Limit, Some(limit))
        }
        Cause::Lost => (wire::Cause::Lost, None),
        Cause::NeverStarted => (wire::Cause::NeverStarted, None),
    };
    let error = match (&end.start_error, &end.verdict) {
        (Some(failure), _) => Some(start_error(Some(failure), &failure.to_string())),
        (None, Verdict::Lost(lost)) => Some(wire::Error {
            code: "lost".to_owned(),
            message: lost.reason.clone(),
            hint: (!lost.suspects.is_empty()).then(|| {
                let list = lost.suspects.iter().map(|s| format!("{} {}", s.identity.pid, s.comm));
                format!("these may be its own: {}", list.collect::<Vec<_>>().join(", "))
            }),
        }),
        (None, Verdict::Dead(_)) => None,
    };
    wire::End { cause, status: status_of(end.status), limit, error }
}

fn status_of(status: ExitStatus) -> wire::Status {
    match status {
        ExitStatus::Exited(code) => wire::Status::Exited(code),
        ExitStatus::Signaled(signal) => wire::Status::Signaled(signal),
        ExitStatus::Unknown(why) => wire::Status::Unknown(
            match why {
                UnknownStatus::Reboot => "reboot",
                UnknownStatus::KeeperLost => "keeper_lost",
                UnknownStatus::NeverStarted => "never_started",
            }
            .to_owned(),
        ),
    }
}

fn proof_of(end: &End) -> Option<wire::ProofView> {
    match &end.verdict {
        Verdict::Lost(_) => None,
        Verdict::Dead(proof) => Some(wire::ProofView {
            rests_on: proof.rests_on().iter().map(ToString::to_string).collect(),
            processes: proof.effort().processes,
            rounds: proof.effort().rounds,
            took_us: proof.effort().total().as_micros() as u64,
            proven_at: Time(proof.proven_at_ms()),
        }),
    }
}

fn survivors_of(stuck: &Stuck) -> Vec<wire::Survivor> {
    let one = |s: &Survivor| wire::Survivor {
        pid: s.identity.pid,
        name: s.comm.clone(),
        state: s.state,
        uid: s.uid,
        tracer: s.tracer,
        reason: s.reason.to_string(),
    };
    stuck.survivors.iter().map(one).collect()
}
