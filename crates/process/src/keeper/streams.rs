//! The keeper's side of the agent's three standard streams.
//!
//! Owns: the pipes or the terminal, the files they are copied to, the queue of input not yet taken,
//! and the current screen of a terminal. Reads as fast as the agent writes, whoever listens or does
//! not. Exit and end of output are two facts: nothing here waits for the one because of the other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::output::{OutputTotals, Recording, Stream, Writer};
use crate::spec::{Stdin, Streams as Wanted, TerminalSize};
use crate::sys::{self, pty};

/// As much as a pipe holds. Large enough that the allocator gives it back when it is dropped.
const BUFFER_BYTES: usize = 256 << 10;
/// How often one stream is read before the others get their turn.
const READS_PER_TURN: usize = 16;
/// The buffer is given back after this much silence.
const BUFFER_IDLE: Duration = Duration::from_millis(200);
/// The largest screen that is kept, some 30 MB: larger than any display, smaller than an attack.
const MAX_SCREEN_CELLS: u32 = 1 << 20;
/// The most input that waits for the run to read it.
pub(crate) const MAX_INPUT_BYTES: usize = 1 << 20;
/// What is read of a stream after the cohort is gone: more than a pipe can hold, so all that the
/// cohort wrote; a stranger who holds the other end and writes on is cut off here.
const DRAIN_BYTES: u64 = 4 << 20;
/// And for no longer than this.
const DRAIN_BOUND: Duration = Duration::from_secs(2);

/// Both ends of everything, before the fork.
pub(crate) struct Ends {
    /// What the child gets as descriptors 0, 1 and 2.
    child: [OwnedFd; 3],
    pub(crate) streams: Streams,
}

impl Ends {
    pub(crate) fn child(&self) -> [BorrowedFd<'_>; 3] {
        [self.child[0].as_fd(), self.child[1].as_fd(), self.child[2].as_fd()]
    }

    /// Closes the child's ends, which the child has copies of by now.
    pub(crate) fn forked(self) -> Streams {
        self.streams
    }
}

/// The keeper's ends.
pub(crate) struct Streams {
    source: Source,
    input: Input,
    buffer: Vec<u8>,
    last_output: Duration,
}

enum Source {
    Pipes(Box<Pipes>),
    Terminal(Box<Terminal>),
}

struct Pipes {
    stdout: Pipe,
    stderr: Pipe,
}

struct Pipe {
    fd: Option<OwnedFd>,
    writer: Writer,
    stream: Stream,
}

struct Terminal {
    master: Option<OwnedFd>,
    /// Our own hold on the agent's side. An agent that closes its three streams would otherwise
    /// leave the terminal without anybody, which reads as its end, and could never open it again.
    slave: Option<OwnedFd>,
    recording: Recording,
    screen: Option<vt100::Parser>,
}

/// Bytes for the run's standard input.
struct Input {
    fd: Option<OwnedFd>,
    /// With a terminal the input goes to the master, which `Source` owns.
    terminal: bool,
    queue: VecDeque<u8>,
    close_when_empty: bool,
}

/// Why input was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputRefused {
    NoInput,
    Full,
}

/// Which descriptor of the streams became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Stdout,
    Stderr,
    Terminal,
    Input,
}

/// A piece of output on its way to attached clients.
pub(crate) struct Piece<'a> {
    pub(crate) stream: Stream,
    pub(crate) offset: u64,
    pub(crate) bytes: &'a [u8],
}

impl Streams {
    /// Opens what a spec wants, with its files in the run's directory.
    pub(crate) fn open(dir: &Path, wanted: Wanted, keep_bytes: u64) -> io::Result<Ends> {
        match wanted {
            Wanted::Pipes { stdin } => Self::open_pipes(dir, stdin, keep_bytes),
            Wanted::Terminal { size } => Self::open_terminal(dir, size, keep_bytes),
        }
    }

    fn open_pipes(dir: &Path, stdin: Stdin, keep_bytes: u64) -> io::Result<Ends> {
        let (child_in, input) = match stdin {
            Stdin::Closed => (OwnedFd::from(std::fs::File::open("/dev/null")?), None),
            Stdin::Pipe => {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                set_nonblocking(&write)?;
                (read, Some(write))
            }
        };
        let (stdout, child_out) = Pipe::open(dir, Stream::Stdout, keep_bytes)?;
        let (stderr, child_err) = Pipe::open(dir, Stream::Stderr, keep_bytes)?;
        let streams =
            Self::new(Source::Pipes(Box::new(Pipes { stdout, stderr })), Input::new(input, false));
        Ok(Ends { child: [child_in, child_out, child_err], streams })
    }

    fn open_terminal(dir: &Path, size: TerminalSize, keep_bytes: u64) -> io::Result<Ends> {
        let pair = pty::open(size)?;
        set_nonblocking(&pair.master)?;
        let unix_seconds = crate::record::unix_ms() / 1000;
        let recording = Recording::begin(dir, keep_bytes, size, sys::boottime(), unix_seconds);
        let screen = fits(size).then(|| vt100::Parser::new(size.rows, size.cols, 0));
        let slave = Some(pair.slave.try_clone()?);
        let terminal = Terminal { master: Some(pair.master), slave, recording, screen };
        let streams = Self::new(Source::Terminal(Box::new(terminal)), Input::new(None, true));
        let child = [pair.slave.try_clone()?, pair.slave.try_clone()?, pair.slave];
        Ok(Ends { child, streams })
    }

    fn new(source: Source, input: Input) -> Self {
        Self { source, input, buffer: Vec::new(), last_output: sys::boottime() }
    }

    /// What to poll: a descriptor, what it is, and whether for writing.
    pub(crate) fn interests(&self) -> Vec<(Ready, BorrowedFd<'_>, bool)> {
        let mut list = Vec::with_capacity(3);
        let waiting = !self.input.queue.is_empty();
        match &self.source {
            Source::Pipes(pipes) => {
                let Pipes { stdout, stderr } = &**pipes;
                list.extend(stdout.fd.as_ref().map(|f| (Ready::Stdout, f.as_fd(), false)));
                list.extend(stderr.fd.as_ref().map(|f| (Ready::Stderr, f.as_fd(), false)));
                let input = self.input.fd.as_ref().filter(|_| waiting);
                list.extend(input.map(|f| (Ready::Input, f.as_fd(), true)));
            }
            Source::Terminal(terminal) => {
                if let Some(master) = &terminal.master {
                    list.push((Ready::Terminal, master.as_fd(), false));
                    if waiting {
                        list.push((Ready::Input, master.as_fd(), true));
                    }
                }
            }
        }
        list
    }

    /// Reads or writes what became ready, and shows each piece of output to `see`.
    pub(crate) fn handle(&mut self, ready: Ready, see: &mut dyn FnMut(Piece<'_>)) {
        match ready {
            Ready::Input => self.write_input(),
            Ready::Stdout | Ready::Stderr | Ready::Terminal => {
                let _ = self.read_turn(ready, READS_PER_TURN, see);
            }
        }
    }

    /// Reads what is left once the cohort is gone, within the bounds. True if every writer had
    /// closed.
    pub(crate) fn drain(&mut self, see: &mut dyn FnMut(Piece<'_>)) -> bool {
        let deadline = sys::boottime() + DRAIN_BOUND;
        if let Source::Terminal(terminal) = &mut self.source {
            terminal.slave = None;
        }
        let ready = match &self.source {
            Source::Pipes(_) => [Ready::Stdout, Ready::Stderr],
            Source::Terminal(_) => [Ready::Terminal, Ready::Terminal],
        };
        for one in ready {
            let mut bytes = 0;
            while bytes < DRAIN_BYTES && sys::boottime() < deadline {
                match self.read_turn(one, 1, see) {
                    0 => break,
                    n => bytes += n,
                }
            }
        }
        if let Source::Terminal(terminal) = &mut self.source {
            terminal.recording.finish(sys::boottime());
        }
        self.interests().iter().all(|(r, ..)| *r == Ready::Input)
    }

    /// Reads one stream up to `turns` times; the number of bytes read.
    fn read_turn(&mut self, ready: Ready, turns: usize, see: &mut dyn FnMut(Piece<'_>)) -> u64 {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_BYTES];
        }
        let mut total = 0;
        for _ in 0..turns {
            let n = match (&mut self.source, ready) {
                (Source::Pipes(pipes), Ready::Stdout) => pipes.stdout.read(&mut self.buffer, see),
                (Source::Pipes(pipes), Ready::Stderr) => pipes.stderr.read(&mut self.buffer, see),
                (Source::Terminal(t), Ready::Terminal) => t.read(&mut self.buffer, see),
                (Source::Pipes(_) | Source::Terminal(_), _) => 0,
            };
            if n == 0 {
                break;
            }
            total += n as u64;
        }
        if total > 0 {
            self.last_output = sys::boottime();
        }
        total
    }

    /// Queues input for the run.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), InputRefused> {
        if !self.takes_input() || self.input.close_when_empty {
            return Err(InputRefused::NoInput);
        }
        if self.input.queue.len() + bytes.len() > MAX_INPUT_BYTES {
            return Err(InputRefused::Full);
        }
        self.input.queue.extend(bytes);
        self.write_input();
        Ok(())
    }

    /// Closes the input once all that was queued is taken. A terminal has no end to close: it is
    /// sent the end-of-file character instead.
    pub(crate) fn close_input(&mut self) -> Result<(), InputRefused> {
        const END_OF_FILE: u8 = 4;
        if self.input.terminal {
            return self.write(&[END_OF_FILE]);
        }
        if self.input.fd.is_none() {
            return Err(InputRefused::NoInput);
        }
        self.input.close_when_empty = true;
        self.write_input();
        Ok(())
    }

    fn takes_input(&self) -> bool {
        match &self.source {
            Source::Pipes(_) => self.input.fd.is_some(),
            Source::Terminal(terminal) => terminal.master.is_some(),
        }
    }

    fn write_input(&mut self) {
        let fd = match &self.source {
            Source::Pipes(_) => self.input.fd.as_ref(),
            Source::Terminal(terminal) => terminal.master.as_ref(),
        };
        let Some(fd) = fd else { return };
        while !self.input.queue.is_empty() {
            let (front, _) = self.input.queue.as_slices();
            match rustix::io::write(fd, front) {
                Ok(n) => drop(self.input.queue.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // Nobody will ever read it: the reader is gone or has closed its end.
                Err(_) => {
                    self.input.queue.clear();
                    self.input.close_when_empty = true;
                }
            }
        }
        if self.input.close_when_empty {
            self.input.fd = None;
        }
    }

    /// Changes the size of a terminal. `None` if there is none.
    pub(crate) fn resize(&mut self, size: TerminalSize) -> Option<io::Result<()>> {
        let Source::Terminal(terminal) = &mut self.source else {
            return None;
        };
        let master = terminal.master.as_ref()?;
        if let Err(e) = pty::resize(master, size) {
            return Some(Err(e));
        }
        terminal.recording.resized(sys::boottime(), size);
        if fits(size) {
            terminal.with_screen(|screen| screen.screen_mut().set_size(size.rows, size.cols));
        } else {
            terminal.screen = None;
        }
        Some(Ok(()))
    }

    /// The bytes that draw the current screen, and the offset they stand for.
    pub(crate) fn screen(&mut self) -> Option<(u64, Vec<u8>)> {
        let Source::Terminal(terminal) = &mut self.source else {
            return None;
        };
        let offset = terminal.recording.raw_offset();
        let mut drawn = Vec::new();
        terminal.with_screen(|screen| drawn = screen.screen().state_formatted().into());
        Some((offset, drawn))
    }

    pub(crate) fn totals(&self) -> OutputTotals {
        let complete = self.interests().iter().all(|(r, ..)| *r == Ready::Input);
        match &self.source {
            Source::Pipes(pipes) => OutputTotals {
                stdout: pipes.stdout.writer.totals(),
                stderr: pipes.stderr.writer.totals(),
                complete,
            },
            Source::Terminal(terminal) => OutputTotals {
                stdout: terminal.recording.totals(),
                complete,
                ..OutputTotals::default()
            },
        }
    }

    pub(crate) fn last_output(&self) -> Duration {
        self.last_output
    }

    /// When the buffer should be given back, if there is one.
    pub(crate) fn idle_at(&self) -> Option<Duration> {
        (!self.buffer.is_empty()).then_some(self.last_output + BUFFER_IDLE)
    }

    pub(crate) fn idle(&mut self, now: Duration) {
        if self.idle_at().is_some_and(|at| now >= at) {
            self.buffer = Vec::new();
        }
    }
}

impl Input {
    fn new(fd: Option<OwnedFd>, terminal: bool) -> Self {
        Self { fd, terminal, queue: VecDeque::new(), close_when_empty: false }
    }
}

impl Pipe {
    fn open(dir: &Path, stream: Stream, keep_bytes: u64) -> io::Result<(Self, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&read)?;
        let writer = Writer::new(dir, stream, keep_bytes);
        Ok((Self { fd: Some(read), writer, stream }, write))
    }

    fn read(&mut self, buffer: &mut [u8], see: &mut dyn FnMut(Piece<'_>)) -> usize {
        let n = read_some(&mut self.fd, buffer);
        let offset = self.writer.totals().written;
        self.writer.write(&buffer[..n]);
        if n > 0 {
            see(Piece { stream: self.stream, offset, bytes: &buffer[..n] });
        }
        n
    }
}

impl Terminal {
    fn read(&mut self, buffer: &mut [u8], see: &mut dyn FnMut(Piece<'_>)) -> usize {
        let n = read_some(&mut self.master, buffer);
        if n > 0 {
            let offset = self.recording.raw_offset();
            self.recording.output(sys::boottime(), &buffer[..n]);
            self.with_screen(|screen| screen.process(&buffer[..n]));
            see(Piece { stream: Stream::Terminal, offset, bytes: &buffer[..n] });
        }
        n
    }

    /// The screen is a convenience: if the agent's bytes make it panic we go on without it.
    fn with_screen(&mut self, act: impl FnOnce(&mut vt100::Parser)) {
        if let Some(mut screen) = self.screen.take() {
            let survived = catch_unwind(AssertUnwindSafe(|| {
                act(&mut screen);
                screen
            }));
            self.screen = survived.ok();
        }
    }
}

/// Whether a screen of this size is kept.
fn fits(size: TerminalSize) -> bool {
    u32::from(size.rows.get()) * u32::from(size.cols.get()) <= MAX_SCREEN_CELLS
}

/// Reads once. Zero if nothing is there now; at the end of the stream the descriptor is closed too.
fn read_some(fd: &mut Option<OwnedFd>, buffer: &mut [u8]) -> usize {
    loop {
        let Some(open) = fd.as_ref() else { return 0 };
        match rustix::io::read(open, &mut *buffer) {
            Ok(0) => *fd = None,
            Ok(n) => return n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return 0,
            // EIO is how the master of a terminal says that nobody has the other end open.
            Err(_) => *fd = None,
        }
    }
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}
