//! `kernfusion selftest --programs`: random programs, with what must hold of each.
//!
//! Programs are judged by processes of their own, one for each core: a program that ends its process, or takes for ever, is a finding
//! like others. A worker reads seeds, and answers in lines of JSON: each check before it is made, and what was found.

use crate::Outcome;
use crate::common::destination::write_derived;
use crate::common::error::CliError;
use crate::common::screen::{Screen, grouped, progress};
use indicatif::ProgressBar;
use kernfusion::fuzz::{Case, Judge, checks_of, culprit, program, shrink};
use kernfusion::tensor_file;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a program may take; those of a million elements take seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// How often the counts are written to a file.
const PERIOD: Duration = Duration::from_secs(60);

/// What to judge.
pub(crate) struct Request {
    /// The first seed.
    pub(crate) first: u64,
    /// How many there are.
    pub(crate) count: u64,
    /// How long to go on at most.
    pub(crate) limit: Option<Duration>,
    /// How many processes share them.
    pub(crate) jobs: usize,
    /// Where counts and findings go.
    pub(crate) json: Option<PathBuf>,
    /// Where the smallest programs go.
    pub(crate) keep: Option<PathBuf>,
}

/// What a worker says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// This check comes next.
    Check(String),
    /// It did not hold.
    Found(Finding),
    /// What `bisect` says of the last finding.
    Blamed(String),
    /// Nothing more about this seed.
    Done,
}

/// A program of which something does not hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Finding {
    seed: u64,
    check: String,
    what: String,
    /// The seed of the smallest program's inputs, if they are not kept.
    inputs_seed: Option<u64>,
    /// The smallest program that shows it; the whole program where its process ended.
    program: String,
    /// The pass, rule, fusion or kernel that makes it wrong, if `bisect` finds one.
    culprit: Option<String>,
}

/// Judges the programs of these seeds.
pub(crate) fn run(request: &Request, screen: &mut Screen) -> Outcome {
    if let Some(directory) = &request.keep {
        std::fs::create_dir_all(directory)
            .map_err(|cause| CliError::Write { path: directory.into(), cause })?;
    }
    let bar = progress(request.count, "{pos}/{len} programs, {per_sec}, {msg}");
    let tally = Tally { start: Instant::now(), given: AtomicU64::new(0), counts: Mutex::default() };
    tally.write(request)?;
    let screen = Mutex::new(screen);
    let outcome: Result<(), CliError> = std::thread::scope(|scope| {
        let share = || tally.share(request, &bar, &screen);
        let workers: Vec<_> = (0..request.jobs).map(|_| scope.spawn(share)).collect();
        let mut last = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            if last.elapsed() > PERIOD {
                last = Instant::now();
                tally.write(request)?;
            }
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panics"))
    });
    bar.finish_and_clear();
    outcome?;
    tally.write(request)?;
    let counts = tally.counts.into_inner().expect("no panics");
    let seconds = tally.start.elapsed().as_secs_f64();
    let screen = screen.into_inner().expect("no panics");
    let rate = counts.programs as f64 / seconds;
    let (programs, findings) = (grouped(counts.programs), counts.findings.len());
    screen.line(format!(
        "{programs} programs in {seconds:.1} s, {rate:.1} programs/s, {findings} findings; checks:"
    ));
    for (check, times) in &counts.checks {
        screen.line(format!("{:>12}  {check}", grouped(*times)));
    }
    Ok(if findings > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What was done so far.
struct Tally {
    start: Instant,
    /// Seeds that were given to workers.
    given: AtomicU64,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    programs: u64,
    /// How often each check was made, by the first word of its name.
    checks: BTreeMap<String, u64>,
    findings: Vec<Finding>,
}

impl Tally {
    /// Lets a worker judge seeds until there are no more.
    fn share(
        &self,
        request: &Request,
        bar: &ProgressBar,
        screen: &Mutex<&mut Screen>,
    ) -> Result<(), CliError> {
        let mut worker = None;
        loop {
            let number = self.given.fetch_add(1, Ordering::Relaxed);
            let is_over = request.limit.is_some_and(|limit| self.start.elapsed() >= limit);
            if number >= request.count || is_over {
                return Ok(());
            }
            let seed = request.first.wrapping_add(number);
            bar.set_message(format!("seed {seed}"));
            let (checks, finding) = match &mut worker {
                Some(worker) => worker,
                none => none.insert(Worker::start(request)?),
            }
            .judge(seed);
            if finding.as_ref().is_some_and(|(_, ended)| *ended) {
                worker = None;
            }
            bar.inc(1);
            let mut counts = self.counts.lock().expect("no panics");
            counts.programs += 1;
            for check in checks {
                *counts.checks.entry(check).or_default() += 1;
            }
            if let Some((finding, _)) = finding {
                let Finding { check, what, culprit, .. } = &finding;
                let culprit =
                    culprit.iter().map(|culprit| format!("; bisect: {culprit}")).collect::<String>();
                bar.suspend(|| {
                    screen.lock().expect("no panics").line(format!("seed {seed}, {check}: {what}{culprit}"));
                });
                counts.findings.push(finding);
            }
        }
    }

    fn write(&self, request: &Request) -> Result<(), CliError> {
        let Some(path) = &request.json else { return Ok(()) };
        let mut counts = self.counts.lock().expect("no panics");
        counts.findings.sort_by_key(|finding| finding.seed);
        let all = json!({
            "first_seed": request.first,
            "programs": counts.programs,
            "seconds": self.start.elapsed().as_secs_f64(),
            "checks": counts.checks,
            "findings": counts.findings,
        });
        write_derived(path, &format!("{all:#}\n"), &[])
    }
}

/// A process that judges programs.
struct Worker {
    child: Child,
    seeds: ChildStdin,
    said: Receiver<Said>,
}

impl Worker {
    fn start(request: &Request) -> Result<Self, CliError> {
        let cannot = |cause| CliError::System { what: "a process that judges programs", cause };
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(["selftest", "--programs", "0", "--worker"]);
        if let Some(directory) = &request.keep {
            command.arg("--keep").arg(directory);
        }
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(cannot)?;
        let seeds = child.stdin.take().expect("it is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, said) = channel();
        std::thread::spawn(move || {
            let lines = answers.lines().map_while(Result::ok);
            let all = lines.map_while(|line| serde_json::from_str(&line).ok());
            all.map_while(|it| sender.send(it).ok()).for_each(drop);
        });
        Ok(Worker { child, seeds, said })
    }

    /// The checks that were made, and what was found, with whether the process has ended.
    fn judge(&mut self, seed: u64) -> (Vec<String>, Option<(Finding, bool)>) {
        let (mut checks, mut found) = (vec![], None);
        let mut last = "writing the program".to_string();
        // A process that has ended says nothing, either.
        let _ = writeln!(self.seeds, "{seed}");
        loop {
            let what = match self.said.recv_timeout(LIMIT) {
                Ok(Said::Check(check)) => {
                    checks.push(check.split([',', ' ']).next().unwrap_or_default().to_string());
                    last = check;
                    continue;
                }
                Ok(Said::Found(finding)) => {
                    found = Some(finding);
                    continue;
                }
                Ok(Said::Blamed(culprit)) => {
                    if let Some(finding) = &mut found {
                        finding.culprit = Some(culprit);
                    }
                    continue;
                }
                Ok(Said::Done) => return (checks, found.map(|finding| (finding, false))),
                // It was asked for the culprit.
                Err(_) if found.is_some() => return (checks, found.map(|finding| (finding, true))),
                Err(RecvTimeoutError::Timeout) => format!("takes longer than {} s", LIMIT.as_secs()),
                Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                    Ok(status) => format!("ends its process: {status}"),
                    Err(cause) => format!("ends its process: {cause}"),
                },
            };
            // Unless it was writing the program that ended it.
            let program = catch_unwind(|| program(seed).graph.to_string()).unwrap_or_default();
            let finding = Finding { seed, check: last, what, inputs_seed: None, program, culprit: None };
            return (checks, Some((finding, true)));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Judges the seeds that come in.
pub(crate) fn work(keep: Option<&Path>) -> Outcome {
    // A panic is a finding; its message is in it.
    std::panic::set_hook(Box::new(|_| ()));
    let say = |said: &Said| {
        let line = serde_json::to_string(said).expect("it is plain data");
        writeln!(io::stdout(), "{line}")
    };
    let gone = |cause| CliError::System { what: "the process that gives seeds", cause };
    for line in io::stdin().lines() {
        let seed = line.map_err(gone)?;
        let seed = seed.parse().map_err(|_| CliError::Usage(format!("{seed} is no seed")))?;
        let program = program(seed);
        let judge = Judge::new(&program);
        for check in checks_of(seed) {
            say(&Said::Check(check.to_string())).map_err(gone)?;
            let Some(violation) = judge.violation(&check) else { continue };
            let (least, inputs) = shrink(&program, &check);
            let mut finding = Finding {
                seed,
                check: check.to_string(),
                what: violation.what,
                inputs_seed: inputs,
                program: least.graph.to_string(),
                culprit: None,
            };
            say(&Said::Found(finding.clone())).map_err(gone)?;
            let keep = |finding: &Finding| keep.map_or(Ok(()), |directory| kept(directory, finding, &least));
            keep(&finding)?;
            // This runs wrong code once more, and may end the process.
            finding.culprit = culprit(&least, &check);
            if let Some(culprit) = &finding.culprit {
                say(&Said::Blamed(culprit.clone())).map_err(gone)?;
                keep(&finding)?;
            }
            break;
        }
        say(&Said::Done).map_err(gone)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the smallest program that shows a finding, and its inputs if they are not those of a seed.
fn kept(directory: &Path, finding: &Finding, least: &Case) -> Result<(), CliError> {
    let Finding { seed, check, what, inputs_seed, program, culprit } = finding;
    let given = match inputs_seed {
        Some(inputs) => format!("inputs of seed {inputs}"),
        None => format!("inputs in {seed}.safetensors"),
    };
    let culprit = culprit.iter().map(|culprit| format!("# bisect: {culprit}\n")).collect::<String>();
    let text = format!("# seed {seed}, {check}: {what}\n# {given}\n{culprit}{program}");
    write_derived(&directory.join(format!("{seed}.kir")), &text, &[])?;
    if inputs_seed.is_none() {
        tensor_file::write(&directory.join(format!("{seed}.safetensors")), &least.inputs)?;
    }
    Ok(())
}
