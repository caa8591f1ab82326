//! Commands with `--device cuda`, where the device is a simulation of the driver ([`driver`]), not a GPU.

#[path = "../../../codegen/cuda/tests/driver/mod.rs"]
pub(crate) mod driver;

use super::workplace::{Ended, TRAIN, Workplace, end, message};
use kernfusion::tensor_file;
use kernfusion_ir::Tensor;
use kernfusion_ir::samples::difference;
use kernfusion_lm::checkpoint::{CHECKPOINT_FILE, Checkpoint};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// A command on the simulated device; `None` where it cannot be built.
fn command(work: &Workplace, flags: &str) -> Option<Command> {
    simulated(work, &format!("{flags} --device cuda"))
}

/// A command for which the driver is simulated.
pub(crate) fn simulated(work: &Workplace, flags: &str) -> Option<Command> {
    let folder = driver::folder()?;
    let mut command = work.command(flags);
    command.env("LD_LIBRARY_PATH", folder).env("KERNFUSION_NVRTC", folder);
    command.env("KERNFUSION_CACHE", work.path("cache"));
    Some(command)
}

pub(crate) fn succeed(work: &Workplace, flags: &str, settings: &[(&str, &str)]) -> Option<String> {
    let mut command = command(work, flags)?;
    let ended = end(command.envs(settings.iter().copied()).spawn().unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{flags} {settings:?}");
    Some(ended.out)
}

fn fail(work: &Workplace, flags: &str, settings: &[(&str, &str)]) -> Option<String> {
    let mut command = command(work, flags)?;
    Some(message(end(command.envs(settings.iter().copied()).spawn().unwrap()), flags))
}

#[test]
fn a_device_has_a_number() {
    let work = Workplace::new();
    let run = |device: &str| {
        let flags = format!("selftest --filter constant --device {device}");
        let command = simulated(&work, &flags)?.env("SIMULATED_DEVICES", "2").spawn();
        Some(end(command.unwrap()))
    };
    let Some(second) = run("cuda:1") else { return };
    assert_eq!((second.code, second.err.as_str()), (Some(0), ""));
    let third = message(run("cuda:2").unwrap(), "cuda:2");
    assert!(third.contains("there is no CUDA device 2; the driver knows 2"), "{third}");
}

/// The last line of a selftest: how many passed and how many failed.
fn tally(out: &str) -> [usize; 2] {
    let last = out.lines().last().unwrap_or_else(|| panic!("no line: {out}"));
    let numbers = last.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>();
    numbers.try_into().unwrap_or_else(|_| panic!("{out}"))
}

/// Selftest in as many processes as there are cores, each with a share: what they say.
fn selftest(work: &Workplace, settings: &[(&str, &str)]) -> Option<Vec<Ended>> {
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let start = |part: usize| {
        let mut command = command(work, &format!("selftest --small --verbose --share {part}/{processes}"))?;
        Some(command.envs(settings.iter().copied()).spawn().unwrap())
    };
    let running: Vec<_> = (1..=processes).map(start).collect::<Option<_>>()?;
    Some(running.into_iter().map(end).collect())
}

/// All of it. A first run, in which kernels do nothing, finds out what they are, so that they are compiled together.
#[test]
fn selftest_passes() {
    let work = Workplace::new();
    let Some(found) = selftest(&work, &[("SIMULATED_KERNELS", "none")]) else { return };
    let all: usize = found.iter().flat_map(|ended| tally(&ended.out)).sum();
    let cubins = work.path("cache/cubin");
    let settings = [("SIMULATED_CUBINS", cubins.to_str().unwrap())];
    // Compiles them, so that the processes after it find them.
    succeed(&work, "selftest --filter constant", &settings);
    let [mut passed, mut failed] = [0, 0];
    for Ended { out, err, .. } in selftest(&work, &settings).unwrap() {
        println!("{out}{err}");
        let [well, badly] = tally(&out);
        (passed, failed) = (passed + well, failed + badly);
    }
    assert_eq!((passed, failed), (all, 0));
    assert!(passed > 1500, "{passed} cases");
}

#[test]
fn selftest_passes_with_other_products() {
    let work = Workplace::new();
    // Of TF32, which nothing but products knows, two kinds of models. The last one has tiles that warpgroups compute.
    let flags = [
        "--filter step --dtype bf16",
        "--filter gpt2 --tf32",
        "--filter t5 --tf32",
        "--filter 1300 --dtype bf16",
    ];
    for flags in flags {
        let Some(out) = succeed(&work, &format!("selftest {flags}"), &[]) else { return };
        assert!(tally(&out)[0] > 0 && tally(&out)[1] == 0, "{out}");
    }
}

#[test]
fn selftest_stops_when_the_device_is_lost() {
    let work = Workplace::new();
    let flags = "selftest --filter constant --verbose";
    let Some(mut command) = command(&work, flags) else { return };
    let ended = end(command.env("SIMULATED_FAILURE", "3").spawn().unwrap());
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    assert_eq!(ended.out.matches("an illegal memory access").count(), 2, "{}", ended.out);
    assert!(ended.out.contains("the device is lost (CUDA: entering the device's context: "), "{}", ended.out);
    assert_eq!(tally(&ended.out), [3, 1], "{}", ended.out);
}

#[test]
fn an_error_names_the_kernel_if_each_is_waited_for() {
    let work = Workplace::new();
    let train = format!("{TRAIN} --steps 3");
    let alone = [("KERNFUSION_CUDA_SYNC", "1")];
    let Some(_) = succeed(&work, &format!("{train} --log graph.jsonl"), &[]) else { return };
    succeed(&work, &format!("{train} --log alone.jsonl"), &alone);
    assert_eq!(work.losses("alone.jsonl"), work.losses("graph.jsonl"));
    let failing = [alone[0], ("SIMULATED_FAILURE", "40")];
    let message = fail(&work, &train, &failing).unwrap();
    assert!(message.starts_with("CUDA: the kernel `") && message.contains("an illegal memory"), "{message}");
    // Alone, it is the same kernel again.
    assert_eq!(fail(&work, &train, &failing).unwrap(), message);
}

#[test]
fn the_nvrtc_that_is_named_is_taken_before_the_systems() {
    let work = Workplace::new();
    let Some(folder) = driver::folder() else { return };
    // What the system finds by that name cannot compile anything.
    std::fs::create_dir(work.path("system")).unwrap();
    std::os::unix::fs::symlink(folder.join("libcuda.so"), work.path("system/libnvrtc.so")).unwrap();
    let libraries = format!("{}:{}", work.path("system").display(), folder.display());
    let setting = [("LD_LIBRARY_PATH", libraries.as_str())];
    let out = succeed(&work, "selftest --filter constant", &setting).unwrap();
    assert_eq!(tally(&out)[1], 0, "{out}");
    // Compiled kernels of another machine need none; without them, an error names the folder.
    let made = work.path("cache/cubin");
    let nowhere = [("KERNFUSION_NVRTC", "nowhere"), ("KERNFUSION_CACHE", "new")];
    let train = format!("{TRAIN} --steps 1");
    let message = fail(&work, &train, &nowhere).unwrap();
    let expected = "KERNFUSION_NVRTC names nowhere, which has no libnvrtc.so that can be used: there is none";
    assert_eq!(message, expected);
    let with_cubins = [nowhere[0], nowhere[1], ("KERNFUSION_CUBINS", made.to_str().unwrap())];
    let out = succeed(&work, "selftest --filter constant", &with_cubins).unwrap();
    assert_eq!(tally(&out)[1], 0, "{out}");
}

/// A sum of many inputs, by pairs of pairs, which is one kernel.
fn sum_of(inputs: usize) -> String {
    let input = |at| format!("  %x{at} = input {{name = \"x{at}\", dtype = f32, shape = [2]}}\n");
    let mut lines: String = (0..inputs).map(input).collect();
    let mut sums: std::collections::VecDeque<_> = (0..inputs).map(|at| format!("x{at}")).collect();
    while let (Some(a), Some(b)) = (sums.pop_front(), sums.pop_front()) {
        let sum = format!("s{}", lines.lines().count());
        lines += &format!("  %{sum} = add %{a}, %{b}\n");
        sums.push_back(sum);
        if sums.len() == 1 {
            break;
        }
    }
    format!("graph \"sum\" {{\n{lines}  output \"y\" = %{}\n}}\n", sums[0])
}

#[test]
fn many_arguments_take_a_newer_driver() {
    let work = Workplace::new();
    let count = 600;
    work.write("sum.kir", sum_of(count));
    let x = |at: usize| (format!("x{at}"), Tensor::new([2], vec![at as f32, 1.0]));
    tensor_file::write(&work.path("in.safetensors"), &(0..count).map(x).collect()).unwrap();
    let run = "run sum.kir --inputs in.safetensors --outputs out.safetensors";
    let Some(_) = succeed(&work, run, &[("SIMULATED_DRIVER", "12010")]) else { return };
    let found = tensor_file::read(&work.path("out.safetensors")).unwrap();
    assert_eq!(found["y"].to_f64(), [(count * (count - 1) / 2) as f64, count as f64]);
    let message = fail(&work, run, &[("SIMULATED_DRIVER", "12000")]).unwrap();
    assert!(
        message.contains("has 601 arguments, and the driver, which knows CUDA 12.0, passes 512"),
        "{message}"
    );
}

#[test]
fn training_has_the_losses_of_the_cpu_in_any_order_of_streams() {
    let work = Workplace::new();
    let flags = format!("{TRAIN} --steps 7 --dropout 0.1 --validate-every 3");
    work.succeed(&format!("{flags} --log cpu.jsonl"));
    let expected = work.losses("cpu.jsonl");
    for order in ["late", "ahead", "at-once"] {
        let log = format!("{order}.jsonl");
        let Some(_) = succeed(&work, &format!("{flags} --log {log}"), &[("SIMULATED_ORDER", order)]) else {
            return;
        };
        let losses = work.losses(&log);
        assert_eq!(losses.len(), expected.len());
        assert!(losses.iter().zip(&expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-3));
        assert_eq!(losses, work.losses("late.jsonl"), "{order}");
    }
}

/// Cards differ in the shared memory of a block: products one after another have tiles here that would take more of it than some have.
#[test]
fn training_takes_as_much_shared_memory_as_a_card_has() {
    let work = Workplace::new();
    work.write("one.json", r#"{"layers": 1}"#);
    let train = "train --preset llama-tiny --config one.json --dtype bf16 --batch-size 4 --steps 2";
    let flags = format!("{train} --sample-tokens 0 --validation-batches 1 --out run --overwrite");
    work.succeed(&format!("{flags} --log cpu.jsonl"));
    let expected = work.losses("cpu.jsonl");
    for architecture in ["80", "86", "89", "90", "120"] {
        let settings = [("SIMULATED_ARCHITECTURE", architecture)];
        let log = format!("{architecture}.jsonl");
        let Some(_) = succeed(&work, &format!("{flags} --log {log}"), &settings) else { return };
        let losses = work.losses(&log);
        let is_near = |(a, b): (&(u64, f64), &(u64, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-2;
        assert!(losses.len() == expected.len() && losses.iter().zip(&expected).all(is_near), "{losses:?}");
    }
}

#[test]
fn microbatches_have_the_losses_of_the_cpu_in_any_order_of_streams() {
    let work = Workplace::new();
    let flags = format!("{TRAIN} --steps 4 --dropout 0.1 --microbatches 2 --validate-every 2");
    work.succeed(&format!("{flags} --log cpu.jsonl"));
    let expected = work.losses("cpu.jsonl");
    for order in ["late", "ahead", "at-once"] {
        let log = format!("{order}.jsonl");
        let Some(out) = succeed(&work, &format!("{flags} --log {log}"), &[("SIMULATED_ORDER", order)]) else {
            return;
        };
        assert!(out.contains("the batch in 2 microbatches"), "{out}");
        let losses = work.losses(&log);
        assert_eq!(losses.len(), expected.len());
        assert!(
            losses.iter().zip(&expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-3),
            "{losses:?}"
        );
        assert_eq!(losses, work.losses("late.jsonl"), "{order}");
    }
    // Kernel by kernel, and with products computed again, they are the same numbers.
    let bench =
        "bench --config small.json --batch-size 4 --steps 2 --warmup 0 --mode compiled --json bench.json";
    let loss = |flags: &str| {
        succeed(&work, &format!("{bench} {flags}"), &[]).unwrap();
        let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["results"][0].clone()
    };
    let [whole, sliced, again] = ["", "--microbatches 4", "--microbatches 4 --recompute"].map(loss);
    let last = |row: &Value| row["loss_last"].as_f64().unwrap();
    assert!((last(&whole) - last(&sliced)).abs() < 1e-4 && (last(&whole) - last(&again)).abs() < 1e-4);
    assert_eq!((whole["microbatches"].as_u64(), sliced["microbatches"].as_u64()), (Some(1), Some(4)));
}

#[test]
fn a_limit_counts_the_memory_of_the_device() {
    let work = Workplace::new();
    work.write("wide.json", r#"{"layers": 1, "width": 32, "heads": 2, "context": 32, "dropout": 0.1}"#);
    let bench = |limit: &str| {
        let fixed = "--mode compiled --steps 1 --warmup 0 --json bench.json";
        succeed(&work, &format!("bench --config wide.json --batch-size 8 {fixed} {limit}"), &[])?;
        let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
        Some(serde_json::from_str::<Value>(&text).unwrap()["results"][0].clone())
    };
    let Some(whole) = bench("") else { return };
    let mib = |row: &Value| row["peak_device_mib"].as_f64().unwrap();
    let limit = (0.8 * mib(&whole) * 1048576.0) as usize;
    let sliced = bench(&format!("--memory-limit {limit}")).unwrap();
    assert!(sliced["microbatches"].as_u64() > Some(1) && whole["microbatches"] == 1, "{whole} {sliced}");
    assert!(mib(&sliced) * 1048576.0 <= limit as f64, "{limit} {sliced}");
    // Training and its validation have the limit together.
    let train = format!("{TRAIN} --config wide.json --batch-size 8 --steps 2 --validate-every 1")
        .replace("--config small.json --batch-size 2 ", "");
    let out = succeed(&work, &format!("{train} --memory-limit {limit}"), &[]).unwrap();
    assert!(out.contains("microbatches"), "{out}");
    let flags = "bench --config wide.json --batch-size 8 --mode compiled --steps 1 --memory-limit 100KiB";
    let message = fail(&work, flags, &[]).unwrap();
    assert!(message.contains("the memory limit of 0.1 MiB is"), "{message}");
}

#[test]
fn eager_mode_gives_memory_back_as_it_goes() {
    let work = Workplace::new();
    norm(&work);
    let files = "run norm.kir --inputs in.safetensors --outputs out.safetensors";
    let run = |flags: &str| succeed(&work, &format!("{files} {flags}"), &[]);
    let Some(_) = run("--mode eager") else { return };
    let found = tensor_file::read(&work.path("out.safetensors")).unwrap();
    run("--mode compiled").unwrap();
    let expected = tensor_file::read(&work.path("out.safetensors")).unwrap();
    assert_eq!(difference(&expected["y"].to_f64(), &found["y"].to_f64(), 1e-6), None);
    // Sixteen results of 384 KiB, of which two are needed at a time, on a device of 2 MiB.
    let mut chain = String::from(
        "graph \"chain\" {\n  %0 = input {name = \"x\", dtype = f32, shape = [98304]} : f32[98304]\n",
    );
    for at in 1..=16 {
        chain += &format!("  %{at} = {} %{} : f32[98304]\n", ["neg", "abs"][at % 2], at - 1);
    }
    work.write("chain.kir", chain + "  output \"y\" = %16\n}\n");
    let x = Tensor::new([98304], (0..98304).map(|at| at as f32 - 9.5));
    tensor_file::write(&work.path("chain.safetensors"), &BTreeMap::from([("x".into(), x)])).unwrap();
    let flags = "run chain.kir --inputs chain.safetensors --outputs out.safetensors --mode eager";
    succeed(&work, flags, &[("SIMULATED_MIB", "2")]).unwrap();
    let message = fail(&work, flags, &[("SIMULATED_MIB", "1")]).unwrap();
    assert!(message.contains("bytes of free memory, the program needs"), "{message}");
    let flags = "profile --config small.json --batch-size 2 --steps 1 --warmup 0 --mode eager --check-finite";
    assert!(succeed(&work, flags, &[]).unwrap().contains("simulated device"));
}

/// The logarithm of numbers below zero, in a line of its own.
const LOGARITHM: &str = r#"graph "logarithm" {
  %x = input {name = "x", dtype = f32, shape = [3]} : f32[3]
  %y = log %x : f32[3]
  output "y" = %y
}
"#;

#[test]
fn what_is_not_finite_is_named() {
    let work = Workplace::new();
    work.write("logarithm.kir", LOGARITHM);
    let x = Tensor::new([3], vec![0.5f32, -1.0, 2.0]);
    tensor_file::write(&work.path("in.safetensors"), &BTreeMap::from([("x".into(), x)])).unwrap();
    let flags = "run logarithm.kir --inputs in.safetensors --outputs out.safetensors --check-finite";
    let Some(message) = fail(&work, flags, &[]) else { return };
    assert!(message.contains("y has NaN: log made NaN of finite numbers up to 2.000e0"), "{message}");
}

#[test]
fn tf32_is_a_choice() {
    let work = Workplace::new();
    let flags = format!("{TRAIN} --steps 4");
    for (log, choice) in [("f32.jsonl", ""), ("tf32.jsonl", "--tf32")] {
        let Some(_) = succeed(&work, &format!("{flags} {choice} --log {log}"), &[]) else { return };
    }
    let [f32, tf32] = ["f32.jsonl", "tf32.jsonl"].map(|log| work.losses(log));
    assert!(f32 != tf32 && f32.iter().zip(&tf32).all(|(a, b)| (a.1 - b.1).abs() < 1e-2), "{f32:?} {tf32:?}");
    let bench = "bench --config small.json --batch-size 2 --steps 1 --warmup 0 --mode compiled --tf32";
    assert!(succeed(&work, bench, &[]).unwrap().contains("tf32 products"));
}

#[test]
fn tuning_chooses_once_and_changes_no_loss() {
    let work = Workplace::new();
    let loss = |flags: &str| {
        let flags =
            format!("bench --config small.json --batch-size 2 --mode compiled --work forward {flags}");
        succeed(&work, &format!("{flags} --steps 1 --warmup 0 --json bench.json"), &[])?;
        let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        document["results"][0]["loss_last"].as_f64()
    };
    let Some(usual) = loss("") else { return };
    let choices = || {
        let files = std::fs::read_dir(work.path("cache/cubin")).unwrap().map(|file| file.unwrap().path());
        let choices = files.filter(|file| file.extension().is_some_and(|extension| extension == "choice"));
        let choices = choices.map(|file| (file.clone(), file.metadata().unwrap().modified().unwrap()));
        choices.collect::<BTreeMap<_, _>>()
    };
    assert!(choices().is_empty());
    let tuned = loss("--tune");
    let chosen = choices();
    let again = loss("--tune");
    assert!(!chosen.is_empty() && choices() == chosen, "{chosen:?}");
    assert_eq!([tuned, again], [Some(usual); 2]);
}

/// What bench says of cublasLt, and the loss.
fn bench_with_library(work: &Workplace, flags: &str, settings: &[(&str, &str)]) -> Option<(String, f64)> {
    let bench =
        "bench --config small.json --batch-size 2 --mode compiled --work forward --steps 1 --warmup 0";
    succeed(work, &format!("{bench} --json bench.json {flags}"), settings)?;
    let text = std::fs::read_to_string(work.path("bench.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let row = &document["results"][0];
    Some((row["library"].as_str().unwrap_or_default().to_owned(), row["loss_last"].as_f64().unwrap()))
}

#[test]
fn a_library_does_products_if_that_is_allowed_and_it_is_quicker() {
    let work = Workplace::new();
    let bench = |flags: &str, settings: &[(&str, &str)]| bench_with_library(&work, flags, settings);
    let Some((said, usual)) = bench("--tune", &[]) else { return };
    assert_eq!(said, "");
    // A library that takes its time is none to be chosen; that is kept, so it stays so when it is quick.
    let slow = [("SIMULATED_LIBRARY", "slow"), ("SIMULATED_LIBRARY_VERSION", "120802")];
    let (said, loss) = bench("--tune=library", &slow).unwrap();
    assert_eq!((said.as_str(), loss), ("0 products by cublasLt 12.8.2", usual));
    assert_eq!(bench("--tune=library", &slow[1..]).unwrap().0, said);
    // Another version is measured again, and its choice is kept, too.
    let (said, loss) = bench("--tune=library", &[]).unwrap();
    assert!(said.ends_with(" products by cublasLt 12.9.1") && !said.starts_with("0 "), "{said}");
    assert!((loss - usual).abs() < 1e-4, "{loss}, usually {usual}");
    let again = bench("--tune=library", &[("SIMULATED_LIBRARY", "slow")]).unwrap();
    assert_eq!(again, (said, loss));
    // One that fails when it is used is an error of the run.
    let command = "bench --config small.json --batch-size 2 --mode compiled --work forward --tune=library";
    let message = fail(&work, command, &[("SIMULATED_LIBRARY", "failing")]).unwrap();
    assert!(message.contains("cublasLt: multiplying matrices: CUBLAS_STATUS_EXECUTION_FAILED"), "{message}");
}

#[test]
fn a_library_that_cannot_is_no_candidate() {
    let work = Workplace::new();
    let bench = |settings: &[(&str, &str)]| bench_with_library(&work, "--tune=library", settings);
    let Some((said, usual)) = bench(&[("SIMULATED_LIBRARY", "unable")]) else { return };
    assert_eq!(said, "0 products by cublasLt 12.9.1");
    let failing = [("SIMULATED_LIBRARY", "failing"), ("SIMULATED_LIBRARY_VERSION", "130000")];
    assert_eq!(bench(&failing), Some(("0 products by cublasLt 13.0.0".into(), usual)));
    let (said, loss) = bench(&[("SIMULATED_LIBRARY", "closed")]).unwrap();
    assert!(said.contains("cublasLt: opening it: CUBLAS_STATUS_NOT_INITIALIZED"), "{said}");
    assert_eq!(loss, usual);
    // A folder that has the driver, but no cublasLt.
    let folder = driver::folder().unwrap();
    for name in ["libcuda.so", "libnvrtc.so"] {
        std::os::unix::fs::symlink(folder.join(name), work.path(name)).unwrap();
    }
    let (said, loss) = bench(&[("LD_LIBRARY_PATH", work.path("").to_str().unwrap())]).unwrap();
    assert!(said.starts_with("own kernels for all products: cublasLt cannot be found: install it"), "{said}");
    assert_eq!(loss, usual);
}

#[test]
fn a_run_goes_on_and_writes_texts() {
    let work = Workplace::new();
    let train = |flags: &str| succeed(&work, &format!("{TRAIN} {flags}"), &[]);
    let Some(_) = train("--steps 6 --log whole.jsonl") else { return };
    let whole = Checkpoint::load(&work.path("run")).unwrap().tensors;
    train("--steps 4 --log parts.jsonl");
    succeed(&work, "train --resume run --steps 6 --log parts.jsonl", &[]);
    assert_eq!(work.losses("parts.jsonl"), work.losses("whole.jsonl"));
    assert!(Checkpoint::load(&work.path("run")).unwrap().tensors == whole, "parameters differ");
    let flags = "generate --checkpoint run --prompt Compiler --tokens 12 --temperature 0";
    assert_eq!(succeed(&work, flags, &[]).unwrap(), work.succeed(flags));
}

#[test]
fn kernels_that_were_compiled_ahead_of_time_need_no_compiler() {
    let work = Workplace::new();
    work.succeed(&format!("{TRAIN} --steps 1"));
    for flags in ["--dtype f32", "--dtype bf16 --weights int8"] {
        let compile = format!("compile --checkpoint run {flags} --arch sm_90a -o kernels");
        let Some(mut command) = simulated(&work, &compile) else { return };
        let ended = end(command.spawn().unwrap());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", ended.out);
        assert!(ended.out.contains(" kernels for sm_90a, of "), "{}", ended.out);
        let generate = format!("generate --checkpoint run {flags} --prompt Comp --tokens 9 --temperature 0");
        let nowhere = [("KERNFUSION_NVRTC", "nowhere"), ("KERNFUSION_CACHE", "new")];
        let message = fail(&work, &generate, &nowhere).unwrap();
        assert!(message.contains("KERNFUSION_NVRTC names nowhere"), "{message}");
        let with_cubins = [nowhere[0], nowhere[1], ("KERNFUSION_CUBINS", "kernels")];
        let text = succeed(&work, &generate, &with_cubins).unwrap();
        assert_eq!(text, succeed(&work, &generate, &[]).unwrap(), "{flags}");
    }
}

/// Kernels are written when all of them are compiled.
#[test]
fn kernels_without_a_compiler_leave_nothing_behind() {
    let work = Workplace::new();
    std::fs::create_dir(work.path("nowhere")).unwrap();
    let flags = "compile --config small.json --arch sm_90a -o new/kernels";
    let mut command = work.command(flags);
    command.env("KERNFUSION_NVRTC", "nowhere").env("KERNFUSION_CACHE", work.path("cache"));
    let said = message(end(command.spawn().unwrap()), flags);
    assert!(said.contains("KERNFUSION_NVRTC names nowhere, which has no libnvrtc.so"), "{said}");
    assert!(!work.path("new").exists());
}

/// What a command has put into the streams of the simulated device, by kind.
fn counts(work: &Workplace, flags: &str) -> Option<BTreeMap<String, usize>> {
    let file = work.path("counts");
    succeed(work, flags, &[("SIMULATED_COUNTS", file.to_str().unwrap())])?;
    let text = std::fs::read_to_string(file).unwrap();
    let count = |line: &str| {
        let (name, number) = line.split_once(": ").unwrap();
        (name.to_string(), number.parse().unwrap())
    };
    Some(text.lines().map(count).collect())
}

/// A token replays the graph that the first one has recorded, between three copies: the batch to the device, from there to where the program reads it,
/// and the logits back.
#[test]
fn a_token_is_one_graph() {
    let work = Workplace::new();
    work.write("long.json", r#"{"layers": 1, "width": 8, "heads": 2, "context": 64}"#);
    let train = TRAIN.replace("small.json", "long.json");
    work.succeed(&format!("{train} --steps 1"));
    let generate = |tokens: usize| {
        counts(
            &work,
            &format!("generate --checkpoint run --prompt Compiler --tokens {tokens} --temperature 0"),
        )
    };
    let Some(few) = generate(4) else { return };
    let more = generate(12).unwrap();
    let of = |counts: &BTreeMap<String, usize>, name: &str| counts.get(name).copied().unwrap_or(0);
    let added = |name: &str| of(&more, name) - of(&few, name);
    assert_eq!((added("graphs"), added("copies")), (8, 24), "{few:?} {more:?}");
    for name in ["launches", "fills", "recorded launches", "recorded copies", "recorded fills"] {
        assert_eq!(added(name), 0, "{name}: {few:?} {more:?}");
    }
    // The prompt, and the first token after it.
    assert!(of(&few, "launches") == 0 && of(&few, "recorded launches") > 20, "{few:?}");
}

/// Sums of squares of rows, and whatever is divided by their roots.
const NORM: &str = r#"graph "norm" {
  %x = input {name = "x", dtype = f32, shape = [3, 4]} : f32[3,4]
  %square = mul %x, %x : f32[3,4]
  %sum = reduce %square {op = sum, axes = [1]} : f32[3]
  %root = sqrt %sum : f32[3]
  %all = broadcast %root {shape = [3, 4], axes = [0]} : f32[3,4]
  %y = div %x, %all : f32[3,4]
  output "y" = %y
}
"#;

/// Writes that program and its input.
fn norm(work: &Workplace) {
    work.write("norm.kir", NORM);
    let x = Tensor::new([3, 4], (0..12).map(|at| 0.5 + at as f32).collect::<Vec<_>>());
    tensor_file::write(&work.path("in.safetensors"), &BTreeMap::from([("x".into(), x)])).unwrap();
}

#[test]
fn bench_and_run() {
    let work = Workplace::new();
    let flags = "bench --config small.json --batch-size 2 --steps 2 --warmup 1 --json bench.json";
    let Some(_) = succeed(&work, flags, &[]) else { return };
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(work.path("bench.json")).unwrap()).unwrap();
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["device"], "cuda");
        assert!(row["median_step_s"].as_f64() > Some(0.0) && row["peak_device_mib"].as_f64() > Some(0.0));
    }
    norm(&work);
    let files = "run norm.kir --inputs in.safetensors --outputs out.safetensors";
    succeed(&work, files, &[]);
    let found = tensor_file::read(&work.path("out.safetensors")).unwrap();
    work.succeed(&format!("{files} --mode reference"));
    let expected = tensor_file::read(&work.path("out.safetensors")).unwrap();
    assert_eq!(difference(&expected["y"].to_f64(), &found["y"].to_f64(), 1e-6), None);
}

#[test]
fn profile_has_a_time_and_a_floor_for_each_kernel() {
    let work = Workplace::new();
    let flags =
        "profile --config small.json --batch-size 2 --steps 1 --warmup 0 --lines 0 --json profile.json";
    let Some(out) = succeed(&work, flags, &[]) else { return };
    assert!(out.contains("simulated device") && out.contains("GB/s copied"), "{out}");
    let text = std::fs::read_to_string(work.path("profile.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let rates =
        ["bandwidth_bytes_per_s", "reads_bytes_per_s", "f32_products_per_s", "bf16_products_per_s", "step_s"];
    assert!(rates.iter().all(|rate| document[*rate].as_f64() > Some(0.0)), "{text}");
    let kernels = document["kernels"].as_array().unwrap();
    let is_positive = |kernel: &Value, field: &str| kernel[field].as_f64() > Some(0.0);
    assert!(kernels.iter().all(|kernel| is_positive(kernel, "seconds") && is_positive(kernel, "floor_s")));
}

#[test]
fn a_device_that_fails_ends_the_run_and_keeps_the_checkpoint() {
    let work = Workplace::new();
    let train = format!("{TRAIN} --checkpoint-every 1 --validate-every 2");
    let Some(_) = succeed(&work, &format!("{train} --steps 1"), &[]) else { return };
    // In the first step, in a later one, and in the validation or the steps about it.
    for launch in ["0", "70", "130"] {
        let message = fail(&work, &format!("{train} --steps 4"), &[("SIMULATED_FAILURE", launch)]).unwrap();
        assert!(
            message.contains("CUDA: ") && message.contains("an illegal memory access"),
            "{launch}: {message}"
        );
        // The checkpoint of the last step that was done, if there was one.
        assert_eq!(work.path("run").join(CHECKPOINT_FILE).exists(), launch != "0", "{launch}");
        assert!(launch == "0" || Checkpoint::load(&work.path("run")).is_ok(), "{launch}");
    }
    let message = fail(&work, "generate --checkpoint run", &[("SIMULATED_FAILURE", "3")]).unwrap();
    assert!(message.contains("an illegal memory access"), "{message}");
}

#[test]
fn what_a_device_lacks_is_one_line() {
    let work = Workplace::new();
    let train = format!("{TRAIN} --steps 1");
    let cases = [
        (("SIMULATED_DEVICES", "0"), "there is no CUDA device 0; the driver knows 0"),
        (
            ("SIMULATED_ARCHITECTURE", "75"),
            "the device is of the architecture sm_75; sm_80 (A100) is the oldest",
        ),
        (("SIMULATED_MIB", "0"), "the device has 0 bytes of free memory, the program needs "),
        (
            ("SIMULATED_DRIVER", "11080"),
            "NVRTC 12 makes code for newer drivers than this one, which knows CUDA 11.8",
        ),
        (("SIMULATED_REFUSAL", "blocks_0_"), "NVRTC refuses `kernel_blocks_0_"),
        (("SIMULATED_REFUSAL", "blocks_0_"), "): error: this simulation was told to refuse it"),
    ];
    for (setting, expected) in cases {
        let Some(message) = fail(&work, &train, &[setting]) else { return };
        assert!(message.contains(expected), "{setting:?}: {message}");
    }
}
