//! One channel's task: notices in order, one at a time, until each is delivered or given up on.
//!
//! ```text
//! waits -> a notice -> tried -> delivered: the place moves
//!                        ^ '-> failed: kept, pause (doubles) -> tried again
//!                        '---------------------'      after so many: dead letter, the place moves
//! ```
//!
//! Owns: the order, the pauses and when to give up. A dead letter and the place that moves over it
//! are one transaction. Dead letters that somebody wants again come before what is new.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use super::{Again, Failed, Known, Poke, body_of, hook, wants, webhook, words};
use crate::api::{App, view, wire};
use crate::config::{Channel, Delivery};
use crate::store::channel::{Letter, Mark, Tried, consumer_of};
use crate::store::consumer::{Ack, Place};
use crate::store::{StoreError, Wanted};
use crate::time::Time;

/// Tries of one notice, if nothing is said: with the pauses below, some 18 minutes of them.
pub(super) const USUAL_TRIES: u32 = 12;
/// The pause after the first failure, if nothing is said: a receiver that is restarted is back.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Notices that are read at once.
const PAGE: usize = 64;
/// Lines that a channel may be past what it has kept: each keeping is a write to the disk, and most
/// lines are nothing to it.
const MAX_UNKEPT: u64 = 256;
/// The pause before a store that refused is asked again.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Who delivers for one channel.
#[derive(Clone, Debug)]
pub(super) struct Postman {
    pub(super) app: App,
    pub(super) channel: Arc<Channel>,
    pub(super) known: Arc<Mutex<Known>>,
    pub(super) poke: Arc<Poke>,
    pub(super) hooks: Arc<Semaphore>,
}

/// How far a channel is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Everything up to here is done, and kept.
    pub(super) kept: u64,
    /// Everything up to here was looked at.
    pub(super) read: u64,
}

impl Postman {
    /// Delivers until the daemon leaves. If it is new, what comes after `from`.
    pub(super) async fn serve(self, from: u64) {
        let mut newest = self.app.feed.watch();
        let mut reading = self.place(from).await;
        self.remember().await;
        loop {
            newest.borrow_and_update();
            if self.letters_wanted() {
                self.revive().await;
            }
            let (notices, next) = self.page(reading.read, PAGE).await;
            for notice in &notices {
                self.settle(notice).await;
                reading = Reading { kept: notice.seq, read: notice.seq };
            }
            let more = next > reading.read;
            reading.read = next;
            if reading.read.saturating_sub(reading.kept) >= MAX_UNKEPT {
                self.keep(Mark::Through { seq: reading.read, at_ms: Time::now().0 }).await;
                reading.kept = reading.read;
            }
            if !more && !self.more(&mut newest).await {
                return;
            }
        }
    }

    /// Where this channel stands; it is made known if it is new.
    pub(super) async fn place(&self, from: u64) -> Reading {
        let name = consumer_of(&self.channel.name);
        let place = self.insist(|| self.come(&name, from)).await;
        Reading { kept: place.acked, read: place.acked }
    }

    async fn come(&self, name: &str, from: u64) -> Result<Place, StoreError> {
        if let Some(known) = self.app.store.place(name).await? {
            return Ok(known);
        }
        let at_ms = Time::now().0;
        let ack = Ack { consumer: name.to_owned(), through: Some(from), at_ms };
        self.app.inbox.acknowledge(ack).await
    }

    /// What it is told of after a line, and how far the journal was looked through.
    pub(super) async fn page(&self, after: u64, limit: usize) -> (Vec<wire::Notice>, u64) {
        let wanted = Wanted { after, limit, quiet: false, run: None };
        let (lines, next) = self.insist(|| self.app.feed.notices(wanted.clone())).await;
        let missed = lines.removed_through.filter(|_| after > 0);
        if let Some(through) = missed {
            let name = &self.channel.name;
            tracing::warn!("channel {name}: notices up to {through} are not kept any more");
        }
        // Whatever it wants to hear of may have been among them.
        let missed = missed.map(|through| view::lagged(after, through));
        let told = lines.lines.iter().filter_map(view::notice);
        let told = told.filter(|notice| wants(&self.channel, notice));
        (missed.into_iter().chain(told).collect(), next)
    }

    /// Waits for something new. False if the daemon leaves.
    pub(super) async fn more(&self, newest: &mut watch::Receiver<u64>) -> bool {
        let mut leaving = self.app.leaving.clone();
        tokio::select! {
            changed = newest.changed() => changed.is_ok(),
            () = self.poke.heard.notified() => true,
            _ = leaving.wait_for(|leaving| *leaving) => false,
        }
    }

    /// True once after somebody wanted dead letters again.
    pub(super) fn letters_wanted(&self) -> bool {
        self.poke.wanted.swap(false, Ordering::Relaxed)
    }

    /// A try that failed because the daemon leaves has not failed: the next one finds what was
    /// begun. Never returns then; the task ends with the daemon.
    pub(super) async fn unless_leaving(&self) {
        if *self.app.leaving.borrow() {
            std::future::pending::<()>().await;
        }
    }

    /// Tries a notice until it is delivered or given up on, and keeps which.
    async fn settle(&self, notice: &wire::Notice) {
        let before = self.insist(|| self.app.store.tried(&self.channel.name)).await;
        let before = before.filter(|tried| tried.seq == notice.seq);
        let mut tries = before.map_or(0, |tried| tried.tries);
        loop {
            tries += 1;
            let at_ms = Time::now().0;
            match self.deliver(notice, tries).await {
                Ok(_) => {
                    self.delivered();
                    self.keep(Mark::Through { seq: notice.seq, at_ms }).await;
                    return;
                }
                Err(failed) => {
                    self.unless_leaving().await;
                    self.failed(&failed.error);
                    let Some(pause) = self.pause(&failed, tries) else {
                        return self.give_up(letter(notice, tries, failed.error)).await;
                    };
                    let tried = Tried { seq: notice.seq, tries, error: failed.error, at_ms };
                    self.keep(Mark::Tried(tried)).await;
                    self.rest(pause).await;
                }
            }
        }
    }

    /// Dead letters that somebody wants again, oldest first.
    async fn revive(&self) {
        let name = &self.channel.name;
        let letters = self.insist(|| self.app.store.letters(name)).await;
        for letter in letters.into_iter().filter(|letter| letter.again) {
            let Ok(notice) = serde_json::from_str::<wire::Notice>(&letter.body) else {
                // Ours, and of a shape that this version does not know.
                let error = "it is of another version of kennel".to_owned();
                let letter = Letter { again: false, error, ..letter };
                self.keep(Mark::Dead { letters: vec![letter], through: None, at_ms: 0 }).await;
                continue;
            };
            let tries = letter.tries + 1;
            match self.deliver(&notice, tries).await {
                Ok(_) => {
                    self.delivered();
                    self.keep(Mark::Revived(letter.seq)).await;
                }
                Err(failed) => {
                    self.unless_leaving().await;
                    self.failed(&failed.error);
                    let (error, at_ms) = (failed.error, Time::now().0);
                    let letter = Letter { again: false, tries, error, at_ms, ..letter };
                    self.keep(Mark::Dead { letters: vec![letter], through: None, at_ms }).await;
                }
            }
        }
    }

    /// One try.
    pub(super) async fn deliver(
        &self,
        notice: &wire::Notice,
        tries: u32,
    ) -> Result<String, Failed> {
        match &self.channel.delivery {
            Delivery::Webhook { url, secret, remote, answer_within } => {
                let target = webhook::Target {
                    url: url.clone(),
                    secret: secret.clone(),
                    remote: *remote,
                    answer_within: answer_within.unwrap_or(webhook::ANSWER_WITHIN),
                };
                let message = webhook::Message {
                    key: notice.id.clone(),
                    event: words::kind_word(notice.kind).to_owned(),
                    body: body_of(notice),
                    at_s: Time::now().0 / 1000,
                };
                webhook::post(&target, &message).await
            }
            Delivery::Command { words, limits } => {
                hook::run(self, words.clone(), limits, notice, tries).await
            }
            Delivery::Desktop => {
                let words = hook::desktop(notice);
                hook::run(self, words, &Default::default(), notice, tries).await
            }
            Delivery::Wake { .. } => {
                let why = "an agent is woken by the end of a run that it asked for, and only so";
                Err(Failed::never(why.to_owned()))
            }
        }
    }

    async fn give_up(&self, letter: Letter) {
        let name = &self.channel.name;
        tracing::warn!("channel {name} has given up on {}: {}", letter.notice, letter.error);
        self.app.metrics.dead_letters(1);
        let through = Some(letter.seq);
        self.keep(Mark::Dead { letters: vec![letter], through, at_ms: Time::now().0 }).await;
    }

    /// How long to wait before the next try; `None` if there is none.
    pub(super) fn pause(&self, failed: &Failed, tries: u32) -> Option<Duration> {
        let Channel { tries: most, first_pause, .. } = &*self.channel;
        let first = first_pause.unwrap_or(FIRST_PAUSE);
        pause(failed, tries, most.unwrap_or(USUAL_TRIES), first)
    }

    async fn rest(&self, pause: Duration) {
        let until = Time(Time::now().0 + pause.as_millis() as u64);
        self.knows(|known| known.next_try = Some(until));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Whoever wants dead letters again has repaired something.
            () = self.poke.heard.notified() => {}
        }
        self.knows(|known| known.next_try = None);
    }

    /// Keeps something, however long that takes: what was delivered must not be so again because a
    /// disk was full.
    pub(super) async fn keep(&self, mark: Mark) {
        let name = &self.channel.name;
        self.insist(|| self.app.inbox.mark(name, mark.clone())).await;
    }

    pub(super) async fn insist<T, A>(&self, ask: impl Fn() -> A) -> T
    where
        A: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(e) => {
                    tracing::warn!("channel {}: {e}", self.channel.name);
                    tokio::time::sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    /// What came of the last try of an earlier daemon.
    async fn remember(&self) {
        let name = &self.channel.name;
        let tried = self.insist(|| self.app.store.tried(name)).await;
        if let Some(tried) = tried {
            self.knows(|known| known.last_error = Some(tried.error.clone()));
        }
    }

    pub(super) fn delivered(&self) {
        self.app.metrics.delivered(super::kind_word(&self.channel.delivery));
        self.knows(|known| {
            known.delivered += 1;
            known.last_delivered = Some(Time::now());
            known.last_error = None;
        });
    }

    pub(super) fn failed(&self, error: &str) {
        self.app.metrics.not_delivered(super::kind_word(&self.channel.delivery));
        self.knows(|known| {
            known.failed += 1;
            known.last_error = Some(error.to_owned());
        });
    }

    pub(super) fn knows(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A notice that is given up on.
pub(super) fn letter(notice: &wire::Notice, tries: u32, error: String) -> Letter {
    Letter {
        seq: notice.seq,
        notice: notice.id.clone(),
        body: body_of(notice),
        tries,
        error,
        at_ms: Time::now().0,
        again: false,
    }
}

fn pause(failed: &Failed, tries: u32, most: u32, first: Duration) -> Option<Duration> {
    let asked = match &failed.again {
        Again::Never => return None,
        Again::Later(asked) => asked.unwrap_or_default(),
    };
    let doubled = first.saturating_mul(1 << (tries - 1).min(20));
    (tries < most).then(|| doubled.min(LONGEST_PAUSE).max(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_end_after_so_many_tries() {
        let failed = Failed::later("no".to_owned());
        let pauses: Vec<u64> = (1..)
            .map_while(|tries| pause(&failed, tries, USUAL_TRIES, FIRST_PAUSE))
            .map(|pause| pause.as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        let put_off = Failed::later("no".to_owned()).not_before(Some(Duration::from_secs(60)));
        assert_eq!(pause(&put_off, 1, 2, FIRST_PAUSE), Some(Duration::from_secs(60)));
        assert_eq!(pause(&put_off, 8, 9, FIRST_PAUSE), Some(Duration::from_secs(128)));
        assert_eq!(pause(&Failed::never("no".to_owned()), 1, 9, FIRST_PAUSE), None);
        assert!(pause(&failed, 999, 1000, LONGEST_PAUSE).is_some(), "no overflow");
    }
}
