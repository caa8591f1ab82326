//! `kernfusion-fuzz`: random bad input for every reader.
//!
//! Cases run in a process of their own, so that one that ends it, or does not end, is a finding like others.

use clap::Parser;
use kernfusion_fuzz::allocator::Counted;
use kernfusion_fuzz::{Outcome, READERS, Reader, run, run_commands};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Random bad input for every reader; exit code 1 if one does what it must not
#[derive(Parser)]
#[command(after_help = "Example: cargo run --release -p kernfusion-fuzz -- --inputs 1000000 --seed 7")]
struct Args {
    /// Inputs of all readers together
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    inputs: u64,
    /// The seed: the same one gives the same inputs
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// This reader alone
    #[arg(long, value_name = "NAME")]
    reader: Option<String>,
    /// The number of the first input of each reader
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u64,
    /// Where inputs with findings are kept
    #[arg(long, value_name = "DIR", default_value = "findings")]
    keep: PathBuf,
    /// Hand the inputs to this program, the command line of Kernfusion, instead of to readers
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Runs cases itself and tells of them on standard output
    #[arg(long, hide = true)]
    worker: bool,
}

/// How long one input may take.
const LONGEST: Duration = Duration::from_secs(60);

/// The stack of a thread that a program starts with Rust's own default.
const STACK: usize = 2 << 20;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.worker {
        let worker = std::thread::Builder::new().stack_size(STACK).spawn(move || work(&args));
        let ended = worker.map(|worker| worker.join().is_ok()).unwrap_or(false);
        return if ended { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let readers: Vec<_> = READERS
        .iter()
        .filter(|reader| args.reader.as_deref().is_none_or(|name| name == reader.name))
        .collect();
    let shares: u64 = readers.iter().map(|reader| reader.share).sum();
    let mut findings = 0;
    for reader in &readers {
        let inputs = args.inputs * reader.share / shares;
        findings += match &args.program {
            Some(program) => hand_over(&args, reader, inputs, program),
            None => watch(&args, reader, inputs),
        };
    }
    println!("{findings} findings");
    if findings == 0 && !readers.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The numbers of one reader.
#[derive(Default)]
struct Tally {
    read: u64,
    refused: u64,
    findings: u64,
}

impl Tally {
    fn show(&self, reader: &Reader, inputs: u64, start: Instant) {
        let rate = inputs as f64 / start.elapsed().as_secs_f64();
        let Tally { read, refused, findings } = self;
        println!(
            "{:<17} {inputs:>9} inputs  {read:>9} read  {refused:>9} refused  {findings:>4} findings  {rate:>8.0} inputs/s",
            reader.name
        );
    }
}

/// Lets workers run the inputs of a reader, a new one behind each input that ends one; how many findings there are.
fn watch(args: &Args, reader: &Reader, inputs: u64) -> u64 {
    let (start, mut tally, mut next) = (Instant::now(), Tally::default(), args.first);
    let end = args.first + inputs;
    while next < end {
        let mut worker = match spawn(args, reader, next, end) {
            Ok(worker) => worker,
            Err(error) => {
                println!("{}: no worker: {error}", reader.name);
                return tally.findings + 1;
            }
        };
        let lines = lines(&mut worker);
        let stopped = listen(&lines, reader, &mut tally, &mut next);
        if let Some(stopped) = stopped {
            // It may have ended already.
            let _ = worker.kill();
            let status = worker.wait().map_or(String::new(), |status| format!(" ({status})"));
            tally.findings += 1;
            println!("{}: input {next} of seed {}: {stopped}{status}", reader.name, args.seed);
            next += 1;
        } else {
            let _ = worker.wait();
        }
    }
    tally.show(reader, inputs, start);
    tally.findings
}

/// Hands inputs to the command line; how many findings there are.
fn hand_over(args: &Args, reader: &Reader, inputs: u64, program: &Path) -> u64 {
    let (start, seeds, mut tally) = (Instant::now(), (reader.seeds)(), Tally::default());
    let program = std::path::absolute(program).unwrap_or(program.into());
    let numbers = if reader.commands.is_empty() { 0 } else { inputs.max(1) };
    for number in args.first..args.first + numbers {
        match run_commands(reader, &seeds, args.seed, number, &program) {
            Outcome::Read => tally.read += 1,
            Outcome::Refused(_) => tally.refused += 1,
            Outcome::Wrong(finding) => {
                tally.findings += 1;
                println!("{}: input {number}: {}", reader.name, finding.fault);
                keep(&args.keep.join(format!("{}-{}-{number}", reader.name, args.seed)), &finding.input);
            }
        }
    }
    tally.show(reader, numbers, start);
    tally.findings
}

fn spawn(args: &Args, reader: &Reader, first: u64, end: u64) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--worker", "--reader", reader.name]).arg("--keep").arg(&args.keep);
    command.args([
        "--first",
        &first.to_string(),
        "--inputs",
        &(end - first).to_string(),
        "--seed",
        &args.seed.to_string(),
    ]);
    command.stdout(Stdio::piped()).spawn()
}

/// What the worker says, line by line.
fn lines(worker: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    if let Some(output) = worker.stdout.take() {
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
    }
    receive
}

/// Follows a worker to its end, or to the input that stops it.
fn listen(
    lines: &Receiver<String>,
    reader: &Reader,
    tally: &mut Tally,
    next: &mut u64,
) -> Option<&'static str> {
    loop {
        let line = match lines.recv_timeout(LONGEST) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Some("takes longer than a minute"),
            Err(RecvTimeoutError::Disconnected) => return Some("ends the process"),
        };
        let mut words = line.splitn(3, ' ');
        let (kind, number) =
            (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()));
        match (kind, number) {
            ("at", Some(number)) => *next = number,
            ("read", Some(number)) => tally.read += number,
            ("refused", Some(number)) => tally.refused += number,
            ("end", Some(number)) => {
                *next = number;
                return None;
            }
            ("wrong", Some(number)) => {
                tally.findings += 1;
                let number: u64 = number;
                println!("{}: input {number}: {}", reader.name, words.next().unwrap_or_default());
            }
            _ => println!("{}: {line}", reader.name),
        }
    }
}

/// Inputs that a worker counts together.
const BUNCH: u64 = 64;

/// Runs the inputs of one reader. Before each it says which, so that one that ends the process is known.
fn work(args: &Args) {
    let Some(reader) = READERS.iter().find(|reader| args.reader.as_deref() == Some(reader.name)) else {
        return;
    };
    let (seeds, place) = ((reader.seeds)(), tempfile::tempdir().expect("a folder for cases"));
    let end = args.first + args.inputs;
    let mut number = args.first;
    while number < end {
        let (mut read, mut refused) = (0u64, 0u64);
        for number in number..end.min(number + BUNCH) {
            say(&format!("at {number}"));
            match run(reader, &seeds, args.seed, number, place.path()) {
                Outcome::Read => read += 1,
                Outcome::Refused(_) => refused += 1,
                Outcome::Wrong(finding) => {
                    say(&format!("wrong {number} {}", finding.fault.replace('\n', " ")));
                    keep(&args.keep.join(format!("{}-{}-{number}", reader.name, args.seed)), &finding.input);
                }
            }
        }
        number = end.min(number + BUNCH);
        say(&format!("read {read}\nrefused {refused}"));
    }
    say(&format!("end {end}"));
}

/// Tells the process that watches; without one, there is nothing left to do.
fn say(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}

/// Writes the files of a finding into a folder of its own.
fn keep(folder: &Path, input: &std::collections::BTreeMap<String, Vec<u8>>) {
    let written = std::fs::create_dir_all(folder).and_then(|()| {
        input.iter().try_for_each(|(name, content)| std::fs::write(folder.join(name), content))
    });
    if let Err(error) = written {
        say(&format!("cannot keep {}: {error}", folder.display()));
    }
}
