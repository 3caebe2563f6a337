//! The mind in a simulated world, where everything dies at every step and nothing is in time.
//!
//! ```text
//! clients --> inbox --> decide --> commit --> perform --> start, stop
//!               ^       (the mind)  (journal)                |
//!               |                                            v
//!               +------ a task per run <-- words, records -- keepers and cohorts (the truth)
//! ```
//!
//! The daemon here is a copy in small of the real one: event loop with batches that are undone if
//! the store does not take them, a task per run that watches, looks and sweeps, a restart that
//! replays what is not dead and adopts it. It knows the truth only by what a real one could ask: a
//! keeper's words, a lock, a record. Every step of everybody is one action of one scheduler, and
//! between any two of them the daemon, a keeper or the machine may die, a connection break, the
//! disk be full, a keeper stand still, a record be unreadable, a word be told again.
//!
//! After each action the truth is compared with the journal, see [`World::check`]; when nothing is
//! left to be done, what was promised must have come about, see [`World::check_at_rest`].
//!
//! What was changed to see that this fails, each caught here. In the mind: a slot freed by `Lost`
//! or `Stuck`, not freed, or not looked at, and the same of worktrees; a stop forgotten before the
//! start, by the start, by an exit, by `Stuck`; a stop performed and not recorded; no stop for a
//! run found running that was to stop, nor at a shutdown; an exit or a stop taken for an end; a
//! proof not taken from the stuck or the lost; an end or a shutdown told twice; facts about nobody;
//! admission without a fact, over the room, while leaving, or for another's claim; nothing, not
//! all, not the leaving, or in the wrong order undone. In the hands: told though not stored; a late
//! keeper not refused; orphans, the lost or the silent called dead; an unreadable record taken for
//! none; nobody adopted; a stop dropped. Only `model.rs` sees which of two graces is kept (there is
//! no clock here), limits that do not bind, runs that are found, and a second admission of one that
//! lives, which the store's key stops here.

mod seeded;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

use kennel_supervisor::{
    Before, Claim, Decision, Effect, Ending, Event, Fact, Leader, Phase, Refusal, RunId, State,
    Stop, Unenforceable, decide,
};
use seeded::{Rng, seeds};

/// Worlds made at random: a few seconds of a debug build.
const WORLDS: u64 = 4000;
/// Races of two, half of them without a crash.
const RACES: u64 = 400;
/// Actions during which things go wrong in such a world.
const CHAOS: usize = 150;
/// Actions after which an adoption, and what follows from it, is over.
const ADOPTION: usize = 16;
/// A world that is not at rest after so many actions never will be: each takes about a hundred.
const REST_BOUND: usize = 4000;
/// How often a stop is offered to a keeper that does not answer.
const STOP_TRIES: u8 = 3;
/// Runs that fit; fewer than some of the worlds ask for.
const ROOM: usize = 2;

const ASK: Stop = Stop::Ask { grace_ms: None };

// The tests.

#[test]
fn nothing_is_doubled_forgotten_or_made_up_in_any_random_world() {
    for seed in seeds(WORLDS) {
        let mut rng = Rng::new(seed);
        let clients = any_clients(&mut rng);
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), clients, rng);
        for _ in 0..CHAOS {
            world.go_wrong_perhaps();
            if !world.act() {
                break;
            }
        }
        world.come_to_rest();
    }
}

#[test]
fn a_crash_at_every_step_of_every_scenario_is_survived() {
    for (name, clients) in scenarios() {
        for schedule in 0..3 {
            let steps = steps_of(name, &clients, schedule);
            for fault in Fault::EACH {
                for at in 0..=steps {
                    run_scenario(name, &clients, schedule, &[(at, fault)]);
                }
            }
        }
    }
}

#[test]
fn a_second_crash_at_every_step_after_the_first_is_survived() {
    let pairs = [
        (Fault::Daemon, Fault::Daemon),
        (Fault::Keepers, Fault::Daemon),
        (Fault::Daemon, Fault::Keepers),
        (Fault::Keepers, Fault::Reboot),
    ];
    for (name, clients) in scenarios() {
        let steps = steps_of(name, &clients, 0);
        for (first, second) in pairs {
            for at in 0..=steps {
                for after in 1..=steps.min(ADOPTION) {
                    run_scenario(name, &clients, 0, &[(at, first), (at + after, second)]);
                }
            }
        }
    }
}

#[test]
fn of_two_who_race_for_a_slot_or_a_worktree_one_wins() {
    for seed in seeds(RACES) {
        let other = if seed % 2 == 0 { start(1, 0, None) } else { start(1, 1, Some(0)) };
        let clients = vec![client(vec![start(0, 0, Some(0))]), client(vec![other])];
        let mut world = World::new(&format!("KENNEL_SEED={seed}"), clients, Rng::new(seed));
        // None in the first half of them.
        for _ in 0..seed.saturating_sub(RACES / 2) % 40 {
            world.act();
            if world.rng.one_in(20) {
                world.happen(Fault::Daemon);
            }
        }
        world.come_to_rest();
        let told: Vec<&Told> = world.clients.iter().map(|client| &client.told[0]).collect();
        let won = told.iter().filter(|told| matches!(told, Told::Started(_))).count();
        let crashed = told.contains(&&Told::NeverStarted);
        assert!(won == 1 || (won == 0 && crashed), "{told:?}: {}", world.story());
    }
}

fn steps_of(name: &str, clients: &[Client], schedule: u64) -> usize {
    run_scenario(name, clients, schedule, &[])
}

/// Runs a scenario with faults after so many actions; how many there were.
fn run_scenario(name: &str, clients: &[Client], schedule: u64, faults: &[(usize, Fault)]) -> usize {
    let label = format!("{name}, schedule {schedule}, {faults:?}");
    let mut world = World::new(&label, clients.to_vec(), Rng::new(schedule));
    let mut steps = 0;
    loop {
        let due = faults.iter().filter(|(at, _)| *at == steps);
        due.for_each(|(_, fault)| world.happen(*fault));
        let more = faults.iter().any(|(at, _)| *at > steps);
        if !world.act() && !more {
            break;
        }
        steps += 1;
        assert!(steps < REST_BOUND, "no end: {}", world.story());
    }
    world.come_to_rest();
    steps
}

// What goes wrong.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The daemon is killed.
    Daemon,
    /// All keepers are killed.
    Keepers,
    Both,
    /// The machine starts anew.
    Reboot,
    /// The next commit finds no space.
    DiskFull,
    /// Every connection to a keeper breaks, and what was said on it is lost.
    Connections,
}

impl Fault {
    const EACH: [Self; 6] =
        [Self::Daemon, Self::Keepers, Self::Both, Self::Reboot, Self::DiskFull, Self::Connections];
}

// What clients want.

#[derive(Clone, Debug)]
struct Client {
    wants: Vec<Want>,
    /// What came of those before the one it is at.
    told: Vec<Told>,
    waits: Waits,
}

#[derive(Clone, Debug)]
enum Want {
    Start {
        run: usize,
        claim: Claim,
        nature: Nature,
        unenforceable: bool,
    },
    Stop {
        run: usize,
        stop: Stop,
    },
    /// Everybody is stopped if that is said; then the daemon leaves.
    Leave {
        stop: Option<Stop>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    ForReply,
    /// It was admitted, and is to start.
    ForStart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Started(usize),
    NeverStarted,
    Refused(Refusal),
    /// There is no such run.
    Nobody,
    WillStop,
    Left,
}

/// How a run's program behaves.
#[derive(Clone, Copy, Debug, Default)]
struct Nature {
    exec_fails: bool,
    /// Its leader leaves by itself.
    exits: bool,
    /// So many others are started by it.
    children: u8,
    /// The run asked to wait for them after its leader left.
    awaited: bool,
    /// They do not leave by themselves.
    stay: bool,
    ignores_ask: bool,
    /// So many rounds of force do not reach it.
    unkillable: u8,
    /// Nothing was there to contain it: who loses its keeper can get away.
    uncontained: bool,
    /// It reaches a limit: its keeper stops it by itself.
    over_limit: bool,
    chatty: bool,
}

// The truth.

/// All that exists of a run outside of the daemon: its directory, its keeper, its cohort.
#[derive(Clone, Debug)]
struct Body {
    nature: Nature,
    keeper: Keeper,
    /// The keeper stands still.
    silent: bool,
    leader: Alive,
    others: u8,
    /// Some instruction of its program was executed.
    ran: bool,
    record: Record,
    unreadable: bool,
    /// Somebody concluded that it never started.
    never_started: bool,
    boot: u32,
    /// What the keeper told whoever started it.
    word: Option<Result<(), ()>>,
    /// What the keeper said to the daemon that watches it.
    connection: Option<VecDeque<Word>>,
    doing: Doing,
    stop: Option<Stop>,
    asked: bool,
    said_exit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeper {
    /// None yet.
    No,
    Coming,
    Locked,
    Forked,
    Recorded,
    Opening,
    Opened,
    /// In its loop: it answers.
    Loops,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alive {
    No,
    /// Before its first instruction.
    AtGate,
    Yes,
    Exited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    No,
    Started,
    Opening,
    Dead,
    Lost,
}

/// What the keeper is doing, as it says when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Running,
    Stopping,
    Stuck,
    Ended,
}

/// Something a keeper says without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Output,
    Stopping,
    Exited,
    Stuck,
    Dead,
}

impl Body {
    fn new(nature: Nature, boot: u32) -> Self {
        Self {
            nature,
            keeper: Keeper::No,
            silent: false,
            leader: Alive::No,
            others: 0,
            ran: false,
            record: Record::No,
            unreadable: false,
            never_started: false,
            boot,
            word: None,
            connection: None,
            doing: Doing::Running,
            stop: None,
            asked: false,
            said_exit: false,
        }
    }

    /// Something of its program lives.
    fn lives(&self) -> bool {
        self.leader == Alive::Yes || self.others > 0
    }

    fn has_keeper(&self) -> bool {
        !matches!(self.keeper, Keeper::No | Keeper::Coming | Keeper::Gone)
    }

    fn say(&mut self, word: Word) {
        if let Some(words) = &mut self.connection {
            words.push_back(word);
        }
    }

    fn keeper_dies(&mut self) {
        if self.keeper == Keeper::No {
            return;
        }
        self.keeper = Keeper::Gone;
        // It reads the end of its gate, and leaves.
        if self.leader == Alive::AtGate {
            self.leader = Alive::No;
        }
    }

    fn machine_starts_anew(&mut self) {
        self.keeper_dies();
        self.connection = None;
        self.others = 0;
        if self.leader == Alive::Yes {
            self.leader = Alive::Exited;
        }
    }

    /// A request to stop is taken; a second one can only make it sooner.
    fn take_stop(&mut self, stop: Stop) {
        if self.doing == Doing::Running {
            self.doing = Doing::Stopping;
            self.say(Word::Stopping);
        }
        if self.stop.is_none() || stop == Stop::Force {
            self.stop = Some(stop);
        }
    }

    fn program_can_act(&self) -> bool {
        let leaves = self.nature.children > 0 || self.nature.exits;
        let after = self.leader == Alive::Exited
            && self.others > 0
            && self.nature.awaited
            && !self.nature.stay;
        (self.leader == Alive::Yes && leaves) || after
    }

    fn program_acts(&mut self) {
        if self.leader == Alive::Exited {
            self.others -= 1;
        } else if self.nature.children > 0 {
            self.nature.children -= 1;
            self.others += 1;
        } else {
            self.leader = Alive::Exited;
        }
    }

    fn keeper_can_act(&self) -> bool {
        if self.silent {
            return false;
        }
        match self.keeper {
            Keeper::No | Keeper::Gone => false,
            Keeper::Loops => {
                let news = self.leader == Alive::Exited && (!self.said_exit || self.others == 0);
                let talks = self.nature.chatty && self.connection.is_some();
                news || talks || self.over_limit() || self.doing == Doing::Ended || self.forces()
            }
            Keeper::Coming
            | Keeper::Locked
            | Keeper::Forked
            | Keeper::Recorded
            | Keeper::Opening
            | Keeper::Opened => true,
        }
    }

    fn over_limit(&self) -> bool {
        self.nature.over_limit && self.doing == Doing::Running
    }

    /// What is left is made to leave: it was to stop, or its leader left and nobody is awaited.
    fn forces(&self) -> bool {
        let swept = self.leader == Alive::Exited && !self.nature.awaited;
        self.lives() && (self.doing != Doing::Running || swept)
    }

    fn keeper_acts(&mut self) {
        match self.keeper {
            Keeper::No | Keeper::Gone => {}
            Keeper::Coming if self.never_started || self.record != Record::No => {
                self.keeper = Keeper::Gone;
            }
            Keeper::Coming => self.keeper = Keeper::Locked,
            Keeper::Locked => (self.keeper, self.leader) = (Keeper::Forked, Alive::AtGate),
            Keeper::Forked => (self.keeper, self.record) = (Keeper::Recorded, Record::Started),
            Keeper::Recorded => (self.keeper, self.record) = (Keeper::Opening, Record::Opening),
            Keeper::Opening if self.nature.exec_fails => {
                (self.leader, self.record) = (Alive::No, Record::Dead);
                (self.keeper, self.word) = (Keeper::Gone, Some(Err(())));
            }
            Keeper::Opening => {
                (self.keeper, self.leader, self.ran) = (Keeper::Opened, Alive::Yes, true);
            }
            Keeper::Opened => (self.keeper, self.word) = (Keeper::Loops, Some(Ok(()))),
            Keeper::Loops => self.keeper_loops(),
        }
    }

    fn keeper_loops(&mut self) {
        if self.doing == Doing::Ended {
            self.keeper = Keeper::Gone;
        } else if self.leader == Alive::Exited && !self.said_exit {
            self.said_exit = true;
            self.say(Word::Exited);
        } else if self.leader == Alive::Exited && self.others == 0 {
            self.record = Record::Dead;
            self.doing = Doing::Ended;
            self.say(Word::Dead);
        } else if self.over_limit() {
            self.take_stop(ASK);
        } else if self.forces() {
            if !self.step_of_force() && self.doing != Doing::Stuck {
                self.doing = Doing::Stuck;
                self.say(Word::Stuck);
            }
        } else {
            self.nature.chatty = false;
            self.say(Word::Output);
        }
    }

    /// Asks, then forces. False if somebody was not reached.
    fn step_of_force(&mut self) -> bool {
        if !self.asked && self.stop != Some(Stop::Force) && self.leader == Alive::Yes {
            self.asked = true;
            if !self.nature.ignores_ask {
                self.leader = Alive::Exited;
            }
            return true;
        }
        if self.nature.unkillable > 0 {
            self.nature.unkillable -= 1;
            return false;
        }
        if self.leader == Alive::Yes {
            self.leader = Alive::Exited;
        }
        let got_away = self.nature.uncontained && self.keeper == Keeper::Gone;
        if !got_away {
            self.others = 0;
        }
        true
    }
}

// The daemon.

/// All that is lost when the daemon dies.
struct Daemon {
    state: State,
    inbox: VecDeque<Input>,
    turn: Turn,
    /// Events of a batch that was not taken, each to be taken alone.
    alone: VecDeque<Input>,
    attending: BTreeMap<usize, Attends>,
    stops: VecDeque<(usize, Stop, u8)>,
    /// What was observed so far, for those who say everything twice.
    observed: Vec<Event>,
}

#[derive(Clone, Debug)]
struct Input {
    event: Event,
    from: Teller,
}

/// Who is told what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Teller {
    Client(usize),
    Run(usize),
    /// Tells until it is taken, and waits for nothing.
    Aside,
    Echo,
}

/// Where the event loop is.
enum Turn {
    Idle,
    Decided { decided: Vec<Decided>, entries: Vec<Entry>, befores: Vec<Before>, alone: bool },
    Durable { left: VecDeque<Decided> },
}

struct Decided {
    input: Input,
    outcome: Outcome,
    effects: VecDeque<Effect>,
    /// Runs that will end if this is durable.
    promised: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Outcome {
    Done,
    AlreadySo,
    Refused(Refusal),
    NotStored,
}

/// A fact, and whether its run is dead after it, by what the mind believes.
#[derive(Clone, Debug)]
struct Entry {
    fact: Fact,
    dead: bool,
}

/// What a run's task in the daemon does.
#[derive(Clone, Debug)]
enum Attends {
    Launch,
    AwaitsStart,
    /// In this order, each until the store has taken it.
    Tells {
        events: VecDeque<Event>,
        waits: bool,
        then: Box<Self>,
    },
    Watches,
    Looks,
    Sweeps,
    /// What it swept is gone, and that is to be recorded.
    Records,
    Over,
}

impl Attends {
    fn tells(events: impl Into<VecDeque<Event>>, then: Self) -> Self {
        Self::Tells { events: events.into(), waits: false, then: Box::new(then) }
    }
}

/// A run as it is stored.
#[derive(Clone, Debug)]
struct Row {
    claim: Claim,
    dead: bool,
    /// Whoever waits for its start need not wait longer.
    settled: bool,
    to_stop: bool,
    ending: Option<Ending>,
    /// Endings that were proven.
    proofs: u8,
    lost: u8,
}

// The world.

struct World {
    label: String,
    rng: Rng,
    clients: Vec<Client>,
    bodies: BTreeMap<usize, Body>,
    /// What is durable: facts in their order, and the table of runs.
    journal: Vec<Fact>,
    rows: BTreeMap<usize, Row>,
    /// Runs of which somebody was told that they will end.
    promised: BTreeSet<usize>,
    daemon: Option<Daemon>,
    /// It is durable that the daemon takes nobody new.
    leaving: bool,
    disk_full: u8,
    boot: u32,
    /// What happened so far, for whoever has to understand a failure.
    story: Vec<Happened>,
}

#[derive(Clone, Debug)]
enum Happened {
    Did(Action),
    WentWrong(Fault),
    /// For this run alone.
    WentWrongFor(usize),
    ToldAgain(Event),
    /// So many facts are durable by now.
    Stored(usize),
    NotStored,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Restart,
    Loop,
    Client(usize),
    Attend(usize),
    Stop,
    Keeper(usize),
    Program(usize),
}

impl World {
    fn new(label: &str, clients: Vec<Client>, rng: Rng) -> Self {
        Self {
            label: label.to_owned(),
            rng,
            clients,
            bodies: BTreeMap::new(),
            journal: vec![],
            rows: BTreeMap::new(),
            promised: BTreeSet::new(),
            daemon: None,
            leaving: false,
            disk_full: 0,
            boot: 0,
            story: vec![],
        }
    }

    /// One action of somebody. False if nobody has anything to do.
    fn act(&mut self) -> bool {
        let open = self.open_actions();
        if open.is_empty() {
            return false;
        }
        let action = *self.rng.pick(&open);
        self.story.push(Happened::Did(action));
        match action {
            Action::Restart => self.restart(),
            Action::Loop => self.turn(),
            Action::Client(client) => self.client_acts(client),
            Action::Attend(run) => self.attend(run),
            Action::Stop => self.offer_stop(),
            Action::Keeper(run) => self.body(run).keeper_acts(),
            Action::Program(run) => self.body(run).program_acts(),
        }
        self.check();
        true
    }

    fn open_actions(&self) -> Vec<Action> {
        let mut open = vec![];
        for (run, body) in &self.bodies {
            open.extend(body.keeper_can_act().then_some(Action::Keeper(*run)));
            open.extend(body.program_can_act().then_some(Action::Program(*run)));
        }
        let Some(daemon) = &self.daemon else {
            open.push(Action::Restart);
            return open;
        };
        let idle = matches!(daemon.turn, Turn::Idle);
        if !idle || !daemon.inbox.is_empty() || !daemon.alone.is_empty() {
            open.push(Action::Loop);
        }
        let attended = daemon.attending.iter().filter(|(run, attends)| self.can(**run, attends));
        open.extend(attended.map(|(run, _)| Action::Attend(*run)));
        open.extend((!daemon.stops.is_empty()).then_some(Action::Stop));
        let can = |client: &Client| match client.waits {
            Waits::No => client.told.len() < client.wants.len(),
            Waits::ForReply => false,
            Waits::ForStart => match &client.wants[client.told.len()] {
                Want::Start { run, .. } => self.rows[run].settled,
                Want::Stop { .. } | Want::Leave { .. } => false,
            },
        };
        let clients = self.clients.iter().enumerate().filter(|(_, client)| can(client));
        open.extend(clients.map(|(n, _)| Action::Client(n)));
        open
    }

    /// Whether a task need not wait for somebody else.
    fn can(&self, run: usize, attends: &Attends) -> bool {
        let body = &self.bodies[&run];
        match attends {
            Attends::Tells { waits, .. } => !waits,
            // It says nothing more: its starter's wait has a bound.
            Attends::AwaitsStart => {
                body.word.is_some() || body.silent || body.keeper == Keeper::Gone
            }
            Attends::Watches => match &body.connection {
                Some(words) => !words.is_empty() || !body.has_keeper(),
                None => true,
            },
            // Whoever is coming is waited for.
            Attends::Looks => {
                !body.has_keeper() || body.keeper == Keeper::Loops || body.silent || body.unreadable
            }
            Attends::Launch | Attends::Sweeps | Attends::Records | Attends::Over => true,
        }
    }

    fn body(&mut self, run: usize) -> &mut Body {
        self.bodies.get_mut(&run).expect("a run that acts has a body")
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("only a daemon that lives acts")
    }

    fn happen(&mut self, fault: Fault) {
        self.story.push(Happened::WentWrong(fault));
        match fault {
            Fault::Daemon => self.daemon_dies(),
            Fault::Keepers => self.bodies.values_mut().for_each(Body::keeper_dies),
            Fault::Both => {
                self.daemon_dies();
                self.bodies.values_mut().for_each(Body::keeper_dies);
            }
            Fault::Reboot => {
                self.daemon_dies();
                self.bodies.values_mut().for_each(Body::machine_starts_anew);
                self.boot += 1;
            }
            Fault::DiskFull => self.disk_full += 1,
            Fault::Connections => self.bodies.values_mut().for_each(|body| body.connection = None),
        }
        self.check();
    }

    fn daemon_dies(&mut self) {
        self.daemon = None;
        self.leaving = false;
        self.bodies.values_mut().for_each(|body| body.connection = None);
        // Whoever had no answer asks again.
        self.clients.iter_mut().for_each(|client| client.waits = Waits::No);
    }

    /// Chaos, now and then.
    fn go_wrong_perhaps(&mut self) {
        if self.rng.one_in(12) {
            match self.rng.below(9) {
                0..3 => self.happen(Fault::Daemon),
                3 => self.happen(Fault::DiskFull),
                4 => self.happen(Fault::Connections),
                5 if self.rng.one_in(3) => self.happen(Fault::Both),
                6 if self.rng.one_in(6) => self.happen(Fault::Reboot),
                _ => self.say_something_again(),
            }
        }
        let Some(run) = self.any_run() else { return };
        if self.rng.one_in(30) {
            match self.rng.below(4) {
                0 => self.body(run).keeper_dies(),
                1 => self.body(run).silent ^= true,
                2 => self.body(run).unreadable ^= true,
                _ => self.body(run).connection = None,
            }
            self.story.push(Happened::WentWrongFor(run));
            self.check();
        }
    }

    fn any_run(&mut self) -> Option<usize> {
        let runs: Vec<usize> = self.bodies.keys().copied().collect();
        (!runs.is_empty()).then(|| *self.rng.pick(&runs))
    }

    /// An observation comes once more, late.
    fn say_something_again(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        if !daemon.observed.is_empty() {
            let event = self.rng.pick(&daemon.observed).clone();
            self.story.push(Happened::ToldAgain(event.clone()));
            daemon.inbox.push_back(Input { event, from: Teller::Echo });
        }
    }

    /// Nothing goes wrong any more: the daemon starts once more, and everything that was promised
    /// comes about.
    fn come_to_rest(&mut self) {
        self.disk_full = 0;
        for body in self.bodies.values_mut() {
            (body.silent, body.unreadable) = (false, false);
        }
        self.happen(Fault::Daemon);
        let mut steps = 0;
        while self.act() {
            steps += 1;
            assert!(steps < REST_BOUND, "never at rest: {}", self.story());
        }
        self.check_at_rest();
    }

    /// All that happened, for a failure.
    fn story(&self) -> String {
        let mut story = format!("{}\n", self.label);
        let mut told = 0;
        for happened in &self.story {
            let _ = match happened {
                Happened::Did(action) => writeln!(story, "  {action:?}"),
                Happened::WentWrong(fault) => writeln!(story, "! {fault:?}"),
                Happened::WentWrongFor(run) => writeln!(story, "! something to r{run}"),
                Happened::ToldAgain(event) => writeln!(story, "! told again: {event:?}"),
                Happened::NotStored => writeln!(story, "    not stored"),
                Happened::Stored(count) => {
                    let facts = &self.journal[std::mem::replace(&mut told, *count)..*count];
                    writeln!(story, "    stored: {facts:?}")
                }
            };
        }
        let _ = writeln!(story, "bodies: {:#?}", self.bodies);
        let _ = writeln!(story, "believed: {:#?}", self.daemon.as_ref().map(|d| &d.state));
        story
    }
}

/// Clients.
impl World {
    fn client_acts(&mut self, n: usize) {
        let client = &self.clients[n];
        let want = client.wants[client.told.len()].clone();
        match want {
            Want::Start { run, .. } if client.waits == Waits::ForStart => {
                let never = self.rows[&run].ending == Some(Ending::NeverStarted);
                self.tell(n, if never { Told::NeverStarted } else { Told::Started(run) });
            }
            Want::Start { run, claim, nature, unenforceable } => {
                if self.asked_before(n, run, &claim) {
                    return;
                }
                // The directory is there before anybody is promised a run in it.
                let boot = self.boot;
                self.bodies.entry(run).or_insert_with(|| Body::new(nature, boot));
                let because = || Unenforceable { limit: "l".into(), because: "b".into() };
                let unenforceable = unenforceable.then(because);
                self.ask(n, Event::RunRequested { run: id(run), claim, unenforceable });
            }
            Want::Stop { run, .. } if !self.rows.contains_key(&run) => self.tell(n, Told::Nobody),
            Want::Stop { run, .. } if self.rows[&run].dead => self.tell(n, Told::WillStop),
            Want::Stop { run, stop } => self.ask(n, Event::StopRequested { run: id(run), stop }),
            Want::Leave { stop } => self.ask(n, Event::ShutdownRequested { stop }),
        }
    }

    /// A run of this id was asked for before: the same words mean the same run.
    fn asked_before(&mut self, n: usize, run: usize, claim: &Claim) -> bool {
        let Some(row) = self.rows.get(&run) else { return false };
        if row.claim == *claim {
            self.clients[n].waits = Waits::ForStart;
        } else {
            self.tell(n, Told::Refused(Refusal::IdTaken));
        }
        true
    }

    fn ask(&mut self, n: usize, event: Event) {
        self.clients[n].waits = Waits::ForReply;
        self.daemon().inbox.push_back(Input { event, from: Teller::Client(n) });
    }

    fn tell(&mut self, n: usize, told: Told) {
        let client = &self.clients[n];
        if let (Told::Started(run), Want::Start { claim, .. }) =
            (&told, &client.wants[client.told.len()])
        {
            let settled = |row: &Row| row.settled && row.claim == *claim;
            let settled = self.rows.get(run).is_some_and(settled);
            assert!(settled, "told of a start that is not durable: {}", self.story());
        }
        self.clients[n].waits = Waits::No;
        self.clients[n].told.push(told);
    }

    fn reply_to_client(&mut self, n: usize, outcome: Outcome) {
        let client = &self.clients[n];
        let want = client.wants[client.told.len()].clone();
        match want {
            Want::Start { run, claim, .. } => match outcome {
                Outcome::Done | Outcome::AlreadySo => self.clients[n].waits = Waits::ForStart,
                // The same request may have been admitted, and its run ended, a moment ago.
                Outcome::Refused(Refusal::IdTaken) | Outcome::NotStored => {
                    if !self.asked_before(n, run, &claim) {
                        self.clients[n].waits = Waits::No;
                    }
                }
                Outcome::Refused(refusal) => self.tell(n, Told::Refused(refusal)),
            },
            Want::Stop { .. } => match outcome {
                Outcome::Done | Outcome::AlreadySo | Outcome::Refused(Refusal::NotLive) => {
                    self.tell(n, Told::WillStop);
                }
                Outcome::Refused(refusal) => self.tell(n, Told::Refused(refusal)),
                Outcome::NotStored => self.clients[n].waits = Waits::No,
            },
            Want::Leave { .. } => match outcome {
                Outcome::Done | Outcome::AlreadySo => {
                    self.tell(n, Told::Left);
                    let event = Event::LeaveRequested;
                    self.daemon().inbox.push_back(Input { event, from: Teller::Echo });
                }
                Outcome::Refused(refusal) => panic!("{refusal:?}: {}", self.story()),
                Outcome::NotStored => self.clients[n].waits = Waits::No,
            },
        }
    }
}

/// The daemon's event loop, its store and its restart.
impl World {
    /// One step of the loop: decide, or commit, or perform one effect, or reply.
    fn turn(&mut self) {
        let turn = std::mem::replace(&mut self.daemon().turn, Turn::Idle);
        match turn {
            Turn::Idle => {
                let alone = !self.daemon().alone.is_empty();
                let inputs: Vec<Input> = if alone {
                    self.daemon().alone.pop_front().into_iter().collect()
                } else {
                    let most = self.daemon().inbox.len();
                    let count = 1 + self.rng.below(most);
                    self.daemon().inbox.drain(..count).collect()
                };
                self.decide(inputs);
            }
            Turn::Decided { decided, entries, befores, alone } => {
                if self.commit(&entries) {
                    self.daemon().turn = Turn::Durable { left: decided.into() };
                } else {
                    self.not_stored(decided, befores, alone);
                }
                if !entries.is_empty() {
                    self.check_replay();
                }
            }
            Turn::Durable { mut left } => {
                if let Some(first) = left.front_mut() {
                    match first.effects.pop_front() {
                        Some(effect) => self.perform(&effect),
                        None => {
                            let Decided { input, outcome, promised, .. } =
                                left.pop_front().expect("there is a first");
                            self.promised.extend(promised);
                            self.reply(&input, outcome);
                        }
                    }
                }
                // It may have left.
                if let Some(daemon) = &mut self.daemon
                    && !left.is_empty()
                {
                    daemon.turn = Turn::Durable { left };
                }
            }
        }
    }

    fn decide(&mut self, inputs: Vec<Input>) {
        let alone = inputs.len() == 1;
        let (mut decided, mut entries, mut befores) = (vec![], vec![], vec![]);
        let state = &mut self.daemon().state;
        for input in inputs {
            let promised = promised_by(state, &input.event);
            let (outcome, effects) = match decide(state, &input.event) {
                Decision::AlreadySo => (Outcome::AlreadySo, vec![]),
                Decision::Refused(refusal) => (Outcome::Refused(refusal), vec![]),
                Decision::Do { facts, effects } => {
                    for fact in facts {
                        let run = fact.run().cloned().unwrap_or_else(|| "".into());
                        befores.push(state.before(&run));
                        state.apply(&fact);
                        entries.push(Entry { fact, dead: state.run(&run).is_none() });
                    }
                    (Outcome::Done, effects)
                }
            };
            decided.push(Decided { input, outcome, effects: effects.into(), promised });
        }
        self.daemon().turn = Turn::Decided { decided, entries, befores, alone };
    }

    /// All of them become durable, or none.
    fn commit(&mut self, entries: &[Entry]) -> bool {
        if entries.is_empty() {
            return true;
        }
        if self.disk_full > 0 {
            self.disk_full -= 1;
            return false;
        }
        let mut rows = self.rows.clone();
        let mut leaving = self.leaving;
        for entry in entries {
            let Some(run) = entry.fact.run().map(number) else {
                assert!(!leaving, "leaving twice: {}", self.story());
                leaving = true;
                continue;
            };
            if let Fact::Admitted { claim, .. } = &entry.fact {
                let live = rows.values().filter(|row| !row.dead).count();
                assert!(!leaving && live < ROOM, "r{run} is one too many: {}", self.story());
                // The key of the table: ids are for ever.
                if rows.contains_key(&run) {
                    return false;
                }
                rows.insert(run, Row::new(claim));
            }
            let row = rows.get_mut(&run);
            let row = row.unwrap_or_else(|| panic!("{entry:?} of nobody: {}", self.story()));
            assert!(!row.dead, "{entry:?} of the dead: {}", self.story());
            row.take(entry);
        }
        (self.rows, self.leaving) = (rows, leaving);
        self.journal.extend(entries.iter().map(|entry| entry.fact.clone()));
        self.story.push(Happened::Stored(self.journal.len()));
        true
    }

    /// Nothing has changed, and nobody is told but those who told it. What is asked to stop is.
    fn not_stored(&mut self, decided: Vec<Decided>, befores: Vec<Before>, alone: bool) {
        self.story.push(Happened::NotStored);
        let state = &mut self.daemon().state;
        befores.into_iter().rev().for_each(|before| state.undo(before));
        for Decided { input, effects, .. } in decided {
            let asked = matches!(
                input.event,
                Event::StopRequested { .. } | Event::ShutdownRequested { .. }
            );
            let stops = effects.iter().all(|effect| matches!(effect, Effect::Stop { .. }));
            if alone && asked && stops && !effects.is_empty() {
                // No space is no reason not to stop; but that it will end is not promised.
                effects.iter().for_each(|effect| self.perform(effect));
                self.reply(&input, Outcome::Done);
            } else if alone {
                self.reply(&input, Outcome::NotStored);
            } else {
                self.daemon().alone.push_back(input);
            }
        }
    }

    fn reply(&mut self, input: &Input, outcome: Outcome) {
        let stored = !matches!(outcome, Outcome::NotStored);
        match input.from {
            Teller::Client(n) => self.reply_to_client(n, outcome),
            Teller::Run(run) => {
                let attends = self.daemon().attending.get_mut(&run);
                if let Some(Attends::Tells { events, waits, .. }) = attends {
                    *waits = false;
                    if stored {
                        events.pop_front();
                    }
                }
            }
            Teller::Aside if !stored => self.daemon().inbox.push_back(input.clone()),
            Teller::Aside | Teller::Echo => {}
        }
    }

    fn perform(&mut self, effect: &Effect) {
        match effect {
            Effect::Start(run) => {
                let run = number(run);
                assert!(self.rows.contains_key(&run), "started unadmitted: {}", self.story());
                let before = self.daemon().attending.insert(run, Attends::Launch);
                assert!(before.is_none(), "started twice: {}", self.story());
            }
            Effect::Adopt(run) => {
                self.daemon().attending.insert(number(run), Attends::Looks);
            }
            Effect::Stop { run, stop } => {
                let row = self.rows.get(&number(run));
                assert!(row.is_some(), "stopped unadmitted: {}", self.story());
                self.daemon().stops.push_back((number(run), *stop, 0));
            }
            Effect::Leave => self.daemon_dies(),
        }
    }

    /// What is not dead is believed again, and looked at.
    fn restart(&mut self) {
        let state = self.replayed();
        let attending = state.runs().map(|(run, _)| (number(run), Attends::Looks)).collect();
        self.daemon = Some(Daemon {
            state,
            inbox: VecDeque::new(),
            turn: Turn::Idle,
            alone: VecDeque::new(),
            attending,
            stops: VecDeque::new(),
            observed: vec![],
        });
    }

    fn replayed(&self) -> State {
        let mut state = State::with_room_for(ROOM);
        for fact in &self.journal {
            if fact.run().is_some_and(|run| !self.rows[&number(run)].dead) {
                state.apply(fact);
            }
        }
        state
    }
}

impl Row {
    fn new(claim: &Claim) -> Self {
        Self {
            claim: claim.clone(),
            dead: false,
            settled: false,
            to_stop: false,
            ending: None,
            proofs: 0,
            lost: 0,
        }
    }

    fn take(&mut self, entry: &Entry) {
        self.dead = entry.dead;
        match &entry.fact {
            Fact::Started(_) | Fact::Stuck(_) => self.settled = true,
            Fact::Stopping { .. } => self.to_stop = true,
            Fact::Ended { ending, .. } => {
                (self.settled, self.ending) = (true, Some(*ending));
                match ending {
                    Ending::Dead | Ending::NeverStarted => self.proofs += 1,
                    Ending::Lost => self.lost += 1,
                }
            }
            Fact::Admitted { .. }
            | Fact::Exited(_)
            | Fact::Warned { .. }
            | Fact::Noted { .. }
            | Fact::ShuttingDown => {}
        }
    }
}

/// The daemon's tasks: one per run, and those that pass a stop on.
impl World {
    fn attend(&mut self, run: usize) {
        let attends = self.daemon().attending.remove(&run).expect("it attends");
        let next = match attends {
            Attends::Launch => {
                let body = self.body(run);
                assert!(body.keeper == Keeper::No, "a second keeper: {}", self.story());
                let boot = self.boot;
                let body = self.body(run);
                (body.keeper, body.boot) = (Keeper::Coming, boot);
                Attends::AwaitsStart
            }
            Attends::AwaitsStart => match self.body(run).word {
                Some(Ok(())) => Attends::tells([Event::Started(id(run))], Attends::Watches),
                Some(Err(())) => ended(run, Ending::NeverStarted),
                // Whether it runs is not known from here: its directory knows.
                None => Attends::Looks,
            },
            Attends::Tells { events, then, .. } => self.tell_next(run, events, then),
            Attends::Watches => self.watch(run),
            Attends::Looks => self.look(run),
            Attends::Sweeps => self.sweep(run),
            Attends::Records => {
                let body = self.body(run);
                let ending = if body.nature.uncontained { Ending::Lost } else { Ending::Dead };
                let lost = ending == Ending::Lost;
                body.record = if lost { Record::Lost } else { Record::Dead };
                ended(run, ending)
            }
            // Its keeper hears that its end is kept here.
            Attends::Over => return,
        };
        self.daemon().attending.insert(run, next);
    }

    fn tell_next(&mut self, run: usize, events: VecDeque<Event>, then: Box<Attends>) -> Attends {
        let Some(event) = events.front().cloned() else { return *then };
        let daemon = self.daemon();
        daemon.observed.push(event.clone());
        daemon.inbox.push_back(Input { event, from: Teller::Run(run) });
        Attends::Tells { events, waits: true, then }
    }

    /// Passes on what the keeper says. The first time, what it says when it is asked.
    fn watch(&mut self, run: usize) -> Attends {
        let body = self.body(run);
        let Some(words) = &mut body.connection else {
            if body.keeper != Keeper::Loops || body.silent {
                return Attends::Looks;
            }
            body.connection = Some(VecDeque::new());
            let exited = body.said_exit.then(|| Event::Exited(id(run)));
            if body.doing == Doing::Ended {
                let dead = Event::Ended { run: id(run), ending: Ending::Dead };
                return Attends::tells(
                    Vec::from_iter(exited.into_iter().chain([dead])),
                    Attends::Over,
                );
            }
            return Attends::tells(Vec::from_iter(exited), Attends::Watches);
        };
        match words.pop_front() {
            Some(Word::Output) => Attends::Watches,
            Some(Word::Stopping) => Attends::tells([Event::Stopping(id(run))], Attends::Watches),
            Some(Word::Exited) => Attends::tells([Event::Exited(id(run))], Attends::Watches),
            Some(Word::Stuck) => Attends::tells([Event::Stuck(id(run))], Attends::Watches),
            Some(Word::Dead) => ended(run, Ending::Dead),
            // It left, or died.
            None => {
                body.connection = None;
                Attends::Looks
            }
        }
    }

    /// Finds out what became of a run, as a real one is found out about.
    fn look(&mut self, run: usize) -> Attends {
        let boot = self.boot;
        let woken = self.rng.one_in(2);
        let body = self.body(run);
        let stuck = Attends::tells([Event::Stuck(id(run))], Attends::Looks);
        let anew = body.boot != boot;
        if body.unreadable {
            return stuck;
        }
        match body.record {
            Record::Dead => return ended(run, Ending::Dead),
            Record::Lost if !anew => return ended(run, Ending::Lost),
            Record::Lost | Record::No | Record::Started | Record::Opening => {}
        }
        if body.has_keeper() {
            if body.silent {
                body.silent = !woken;
                return stuck;
            }
            let started = Event::Started(id(run));
            return match body.doing {
                Doing::Stuck => Attends::tells([Event::Stuck(id(run))], Attends::Watches),
                Doing::Running | Doing::Ended => Attends::tells([started], Attends::Watches),
                Doing::Stopping => {
                    Attends::tells([started, Event::Stopping(id(run))], Attends::Watches)
                }
            };
        }
        match body.record {
            Record::No => {
                body.never_started = true;
                ended(run, Ending::NeverStarted)
            }
            Record::Started | Record::Opening | Record::Lost if anew => ended(run, Ending::Dead),
            Record::Started => {
                body.never_started = true;
                ended(run, Ending::NeverStarted)
            }
            Record::Opening | Record::Dead | Record::Lost => {
                Attends::tells([Event::Stopping(id(run))], Attends::Sweeps)
            }
        }
    }

    /// The keeper died: what it left is stopped from here.
    fn sweep(&mut self, run: usize) -> Attends {
        let body = self.body(run);
        let got_away = body.nature.uncontained && body.leader != Alive::Yes;
        if !body.lives() || got_away {
            return Attends::Records;
        }
        if body.step_of_force() {
            Attends::Sweeps
        } else {
            Attends::tells([Event::Stuck(id(run))], Attends::Sweeps)
        }
    }

    fn offer_stop(&mut self) {
        let at = self.rng.below(self.daemon.as_ref().map_or(1, |daemon| daemon.stops.len()));
        let Some((run, stop, tries)) = self.daemon().stops.remove(at) else { return };
        let body = self.body(run);
        if !body.has_keeper() {
            return;
        }
        if body.keeper == Keeper::Loops && !body.silent {
            return body.take_stop(stop);
        }
        if tries + 1 < STOP_TRIES {
            self.daemon().stops.push_back((run, stop, tries + 1));
        } else {
            let event = Event::Stuck(id(run));
            self.daemon().inbox.push_back(Input { event, from: Teller::Aside });
        }
    }
}

/// The runs that somebody who asks for this may rely on to end. Of one that is stuck or lost it is
/// told that it is, and no more is promised.
fn promised_by(state: &State, event: &Event) -> Vec<usize> {
    let can_end = |phase| !matches!(phase, Phase::Stuck | Phase::Lost);
    let able = state.runs().filter(|(_, known)| can_end(known.phase));
    let able = able.map(|(run, _)| number(run));
    match event {
        Event::StopRequested { run, .. } => able.filter(|n| *n == number(run)).collect(),
        Event::ShutdownRequested { stop: Some(_) } => able.collect(),
        Event::ShutdownRequested { stop: None }
        | Event::RunRequested { .. }
        | Event::Found { .. }
        | Event::Started(_)
        | Event::Stopping(_)
        | Event::Exited(_)
        | Event::Warned { .. }
        | Event::Noted { .. }
        | Event::Stuck(_)
        | Event::Ended { .. }
        | Event::LeaveRequested => vec![],
    }
}

fn ended(run: usize, ending: Ending) -> Attends {
    Attends::tells([Event::Ended { run: id(run), ending }], Attends::Over)
}

/// What is to hold.
impl World {
    /// At every instant: nobody shares a place, nobody is called dead who lives, nobody who never
    /// started has run, and no end is told twice.
    fn check(&self) {
        let mut places: Vec<(&Claim, usize)> = Vec::with_capacity(ROOM);
        for (run, body) in &self.bodies {
            let Some(row) = self.rows.get(run) else {
                assert!(!body.ran, "r{run} ran unadmitted: {}", self.story());
                continue;
            };
            assert!(row.proofs <= 1 && row.lost <= 1, "r{run} ended twice: {}", self.story());
            let never = row.ending == Some(Ending::NeverStarted);
            assert!(!(never && body.ran), "r{run} did start: {}", self.story());
            let proven = row.ending.is_some_and(|ending| ending != Ending::Lost);
            assert_eq!(row.dead, proven, "r{run} is not as its facts say: {}", self.story());
            if !body.lives() {
                continue;
            }
            assert!(!row.dead, "r{run} is called dead and lives: {}", self.story());
            for (other, by) in &places {
                let slot = other.slot == row.claim.slot;
                let worktree = other.worktree.is_some() && other.worktree == row.claim.worktree;
                assert!(!slot && !worktree, "r{by} and r{run} in one place: {}", self.story());
            }
            places.push((&row.claim, *run));
        }
    }

    /// What is believed between two turns is what a restart would believe.
    fn check_replay(&self) {
        let Some(daemon) = &self.daemon else { return };
        let mut replayed = self.replayed();
        if self.leaving {
            replayed.apply(&Fact::ShuttingDown);
        }
        assert_eq!(daemon.state, replayed, "not what is durable: {}", self.story());
    }

    /// At rest: whoever can be dead is, and by proof; what was to stop has; places are free again;
    /// everybody was answered; and what is believed is so.
    fn check_at_rest(&self) {
        self.check_replay();
        let daemon = self.daemon.as_ref().expect("it was started again");
        for (run, row) in &self.rows {
            let body = &self.bodies[run];
            let lost = row.ending == Some(Ending::Lost);
            assert_eq!(lost && row.lost == 1, lost && !row.dead, "r{run}: {}", self.story());
            let over = row.dead || lost;
            assert!(over || body.lives(), "r{run} died and nobody knows: {}", self.story());
            let to_stop = row.to_stop || self.promised.contains(run);
            assert!(over || !to_stop, "r{run} was to stop: {}", self.story());
            // Nothing outlives the machine.
            assert!(row.dead || body.boot == self.boot, "r{run} is dead: {}", self.story());
            if row.dead {
                let claim = &row.claim;
                let next = daemon.state.holder(&claim.slot);
                assert_ne!(next, Some(&id(*run)), "r{run} holds its slot: {}", self.story());
                continue;
            }
            let believed = daemon.state.run(&id(*run)).map(|known| known.phase);
            let expected = match body.leader {
                _ if lost => Phase::Lost,
                Alive::Exited => Phase::Running { leader: Leader::Exited },
                Alive::Yes | Alive::No | Alive::AtGate => Phase::Running { leader: Leader::Lives },
            };
            assert_eq!(believed, Some(expected), "r{run}: {}", self.story());
        }
        self.check_places(&daemon.state);
        for client in &self.clients {
            assert_eq!(client.told.len(), client.wants.len(), "unanswered: {}", self.story());
            for told in &client.told {
                if let Told::Started(run) = told {
                    assert!(self.rows.contains_key(run), "r{run} forgotten: {}", self.story());
                }
            }
        }
    }

    /// A place is taken if and only if somebody without a proof of death has it.
    fn check_places(&self, state: &State) {
        for (run, row) in &self.rows {
            let holds =
                |other: &(&usize, &Row)| !other.1.dead && other.1.claim.slot == row.claim.slot;
            let holder = self.rows.iter().find(holds).map(|(run, _)| id(*run));
            let believed = state.holder(&row.claim.slot).cloned();
            assert_eq!(believed, holder, "the slot of r{run}: {}", self.story());
            let Some(worktree) = &row.claim.worktree else { continue };
            let works = |other: &(&usize, &Row)| {
                !other.1.dead && other.1.claim.worktree.as_ref() == Some(worktree)
            };
            let worker = self.rows.iter().find(works).map(|(run, _)| id(*run));
            let believed = state.lives_in(worktree).cloned();
            assert_eq!(believed, worker, "the worktree of r{run}: {}", self.story());
        }
    }
}

// Scripts.

fn id(run: usize) -> RunId {
    format!("r{run}").as_str().into()
}

fn number(run: &RunId) -> usize {
    run.as_str()[1..].parse().expect("ids are made by `id`")
}

fn claim(slot: usize, worktree: Option<usize>) -> Claim {
    let worktree = worktree.map(|n| format!("/w{n}").as_str().into());
    Claim { slot: format!("s{slot}").as_str().into(), worktree, parent: None }
}

fn client(wants: Vec<Want>) -> Client {
    Client { wants, told: vec![], waits: Waits::No }
}

/// A run that lives until it is stopped.
fn start(run: usize, slot: usize, worktree: Option<usize>) -> Want {
    start_like(run, slot, worktree, Nature::default())
}

fn start_like(run: usize, slot: usize, worktree: Option<usize>, nature: Nature) -> Want {
    Want::Start { run, claim: claim(slot, worktree), nature, unenforceable: false }
}

fn stop(run: usize, stop: Stop) -> Want {
    Want::Stop { run, stop }
}

/// Stories that each end in a stop or an end, for faults at every step.
fn scenarios() -> Vec<(&'static str, Vec<Client>)> {
    let exits = Nature { exits: true, children: 1, ..Nature::default() };
    let stubborn = Nature { ignores_ask: true, unkillable: 2, children: 1, ..Nature::default() };
    let loose = Nature { uncontained: true, children: 1, ..Nature::default() };
    let awaited = Nature { exits: true, children: 2, awaited: true, ..Nature::default() };
    let staying = Nature { stay: true, ..awaited };
    let over_limit = Nature { over_limit: true, chatty: true, ..Nature::default() };
    let broken = Nature { exec_fails: true, ..Nature::default() };
    let one = |wants| vec![client(wants)];
    let then_next =
        |nature| one(vec![start_like(0, 0, Some(0), nature), stop(0, ASK), start(1, 0, Some(0))]);
    vec![
        ("exits by itself", one(vec![start_like(0, 0, None, exits), start(1, 0, None)])),
        ("asked to stop", then_next(Nature::default())),
        ("stubborn", then_next(stubborn)),
        ("without containment", then_next(loose)),
        ("awaited", one(vec![start_like(0, 0, None, awaited)])),
        ("staying", then_next(staying)),
        ("over its limit", one(vec![start_like(0, 0, None, over_limit), start(1, 0, None)])),
        ("not executable", one(vec![start_like(0, 0, None, broken), start(1, 0, None)])),
        (
            "stopped while it starts",
            vec![client(vec![start(0, 0, None)]), client(vec![stop(0, Stop::Force), stop(0, ASK)])],
        ),
        (
            "two of one id, and one for its slot",
            vec![
                client(vec![start(0, 0, None), stop(0, Stop::Force)]),
                client(vec![start(0, 0, None)]),
                client(vec![start(1, 0, None)]),
            ],
        ),
        (
            "all are stopped and the daemon leaves",
            vec![
                client(vec![start(0, 0, None), start_like(1, 1, None, exits)]),
                client(vec![Want::Leave { stop: Some(ASK) }, start(2, 0, None)]),
            ],
        ),
    ]
}

/// Some clients who want this and that of few runs, slots and worktrees.
fn any_clients(rng: &mut Rng) -> Vec<Client> {
    let natures: Vec<Nature> = (0..5).map(|_| any_nature(rng)).collect();
    let clients = 1 + rng.below(4);
    let mut any_client =
        |_| client((0..1 + rng.below(5)).map(|_| any_want(rng, &natures)).collect());
    (0..clients).map(&mut any_client).collect()
}

fn any_want(rng: &mut Rng, natures: &[Nature]) -> Want {
    let run = rng.below(natures.len());
    let stops = [ASK, Stop::Ask { grace_ms: Some(5) }, Stop::Force];
    match rng.below(12) {
        0..7 => {
            // Mostly the same words for the same id; now and then another claim.
            let slot = if rng.one_in(10) { rng.below(3) } else { run % 3 };
            let worktree = run.is_multiple_of(2).then_some(run % 4 / 2);
            let unenforceable = rng.one_in(20);
            let (claim, nature) = (claim(slot, worktree), natures[run]);
            Want::Start { run, claim, nature, unenforceable }
        }
        7..11 => stop(run, *rng.pick(&stops)),
        _ => Want::Leave { stop: rng.one_in(2).then(|| *rng.pick(&stops)) },
    }
}

fn any_nature(rng: &mut Rng) -> Nature {
    Nature {
        exec_fails: rng.one_in(8),
        exits: rng.one_in(2),
        children: rng.below(3) as u8,
        awaited: rng.one_in(3),
        stay: rng.one_in(2),
        ignores_ask: rng.one_in(3),
        unkillable: if rng.one_in(4) { 1 + rng.below(4) as u8 } else { 0 },
        uncontained: rng.one_in(5),
        over_limit: rng.one_in(6),
        chatty: rng.one_in(2),
    }
}
