//! CUDA without a GPU: whole training steps of small models on the emulator, and every kernel of every preset through
//! NVRTC, where it is installed.

use kernfusion::HostTensor;
use kernfusion::WeightType;
use kernfusion::compile::{MemoryStrategy, Mode, Precision as ProductType, Stages, Target, lower};
use kernfusion::models::{Chunk, GptConfig, ModelConfig, RecurrentLmConfig, presets, samples, wide_samples};
use kernfusion::optim::Optimizer;
use kernfusion::trace::Trace;
use kernfusion_cuda::emulator::{self, Emulator, Job, ThreadSchedule};
use kernfusion_cuda::{Launches, Options, Renderer, StreamOp};
use kernfusion_ir::evaluate::{Array, Precision, evaluate};
use kernfusion_ir::kernel::{Form, Plan};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::difference;
use kernfusion_ir::{Graph, InputRole};
use kernfusion_lm::train::batches;
use kernfusion_passes::plan::plan;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A program with its inputs, and what it should compute.
struct Case {
    name: String,
    graph: Graph,
    plan: Plan,
    inputs: BTreeMap<String, HostTensor>,
    expected: BTreeMap<String, Array>,
    tolerance: f64,
}

/// A step of AdamW on a small model. With products of bf16 the evaluator is given the program with its conversions.
fn training_step(config: impl Into<ModelConfig>, target: &Target, tolerance: f64) -> Case {
    let config = config.into();
    let step = config.train_step(3, &Optimizer::adamw(1e-2), Some(1.0)).expect("a step");
    let (seed, count) = (7, 3 * config.context() as u64);
    let words = config.vocabulary() - config.marks();
    let token = |at: u64| (element_bits(seed, 0, 0, at) as usize % words) as i32;
    let windows = ((0..count).map(token).collect(), (count..2 * count).map(token).collect());
    let data = batches::inputs(&config, windows, 3, 1, 0).into_iter();
    let mut inputs: BTreeMap<_, _> = data.map(|(name, tensor)| (name.to_string(), tensor)).collect();
    inputs.extend(
        step.scalars(3, 1e-2, u64::from(seed)).into_iter().map(|(name, scalar)| (name.into(), scalar)),
    );
    inputs.extend(step.program.initial_parameters(1));
    let name = format!("{} {}", serde_json::to_string(&config).expect("plain data"), target.product_type());
    // Moments as after some steps: Adam divides by the root of the second one.
    case(name, step.program.graph, inputs, 1e-3..2e-3, target, tolerance)
}

/// A chunk of two tokens after three that caches hold: logits, and what is in the caches then. None of models without them.
fn continuation(name: &str, config: &ModelConfig, target: &Target) -> Option<Case> {
    let (trace, narrow) = (Trace::new(), target.product_type() == ProductType::Bf16);
    trace.store_matrices(target.stored());
    let chunk = Chunk { length: 2, visible: config.context(), capacity: config.context() };
    let program = config.continuation(&trace, 3, chunk).expect("a program")?;
    let words = config.vocabulary() as u32;
    let tokens: Vec<_> = (0..6).map(|at| (element_bits(3, 0, 0, at) % words) as i32).collect();
    let scalar = |value: i32| HostTensor::new([], vec![value]);
    let data = [("x", HostTensor::new([3, 2], tokens)), ("position", scalar(3)), ("last", scalar(1))];
    let mut inputs: BTreeMap<_, _> = data.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
    inputs.extend(program.initial_parameters(1));
    let tolerance = if narrow || target.stored() != WeightType::F32 { 1e-2 } else { 5e-4 };
    Some(case(format!("continuation of {name}"), program.graph, inputs, -1.0..1.0, target, tolerance))
}

/// A program whose other states have numbers of this range.
fn case(
    name: String,
    graph: Graph,
    mut inputs: BTreeMap<String, HostTensor>,
    states: Range<f64>,
    target: &Target,
    tolerance: f64,
) -> Case {
    for (id, name, role) in graph.inputs() {
        if role == InputRole::State && !inputs.contains_key(name) {
            let share = |at: u64| f64::from(element_bits(7, 1, 0, at)) / f64::from(u32::MAX);
            let number = |at: u64| states.start + (states.end - states.start) * share(at);
            let values: Vec<_> = (0..graph[id].ty.elements() as u64).map(number).collect();
            inputs.insert(name.into(), HostTensor::from_f64(&graph[id].ty, &values));
        }
    }
    let mut converted = graph.clone();
    if target.product_type() == ProductType::Bf16 {
        let stages = Stages::new(target, MemoryStrategy::NONE);
        stages.simplify(&mut converted, None, &mut |_, _| {}).expect("passes");
    }
    let expected = evaluate(&converted, &inputs, Precision::Declared).expect("evaluates");
    // A GPU keeps nothing from run to run but states.
    let plan = plan(lower(&graph, target, MemoryStrategy::NONE).expect("lowers").program.body.graph);
    Case { name, graph, plan, inputs, expected, tolerance }
}

/// The plan that a GPU runs: passes of its own take part, and kernels are those that it has code for.
fn plan_of_gpu(graph: &Graph, target: &Target) -> Plan {
    let stages = Stages::of_gpu(target, MemoryStrategy::NONE, kernfusion_cuda::accepts);
    let mut graph = graph.clone();
    stages.simplify(&mut graph, None, &mut |_, _| {}).expect("passes");
    stages.plan(stages.fuse(&graph).expect("fuses"))
}

fn of_gpu(case: Case, target: &Target) -> Case {
    Case { plan: plan_of_gpu(&case.graph, target), ..case }
}

/// The results of each case.
type Results = Vec<BTreeMap<String, HostTensor>>;

fn results(emulator: &Emulator, cases: &[Case], programs: &[Launches], schedule: ThreadSchedule) -> Results {
    let pairs = cases.iter().zip(programs);
    let jobs: Vec<_> =
        pairs.map(|(case, program)| Job { plan: &case.plan, program, inputs: &case.inputs }).collect();
    emulator.run(&jobs, schedule).unwrap_or_else(|error| panic!("{schedule:?}: {error}"))
}

fn failures(cases: &[Case], results: &Results) -> Vec<String> {
    let mut failures = vec![];
    for (case, found) in cases.iter().zip(results) {
        for (name, expected) in &case.expected {
            let reason = difference(&expected.values, &found[name].to_f64(), case.tolerance);
            failures.extend(reason.map(|reason| format!("{}: {name}: {reason}", case.name)));
        }
    }
    failures
}

#[test]
fn training_steps_and_continuations_match_the_reference_under_every_schedule() {
    if !emulator::is_present() {
        println!("skipped: there is no C++ compiler (g++, or what CXX names)");
        return;
    }
    let config =
        GptConfig { vocabulary: 11, context: 6, layers: 2, heads: 2, width: 8, ..GptConfig::default() };
    // Heads whose scores take several tiles, and operands that lie aligned in memory.
    let long = GptConfig { context: 70, layers: 1, width: 32, dropout: 0.0, ..config.clone() };
    let compiled = Target::cpu().mode(Mode::Compiled);
    let narrow = compiled.clone().precision(ProductType::Bf16);
    let cases = [
        training_step(long.clone(), &compiled, 2e-4),
        training_step(long.clone(), &compiled.clone().precision(ProductType::Bf16), 1e-2),
        training_step(GptConfig { dropout: 0.2, ..config.clone() }, &Target::cpu().mode(Mode::Eager), 2e-4),
        training_step(config, &compiled.clone().precision(ProductType::Bf16), 1e-2),
        of_gpu(training_step(long.clone(), &compiled, 2e-4), &compiled),
        of_gpu(training_step(long, &narrow, 1e-2), &narrow),
    ];
    let others = samples().into_iter().map(|(_, config)| training_step(config, &compiled, 5e-4));
    let parts = samples().into_iter().flat_map(|(name, config)| {
        [&compiled, &narrow]
            .into_iter()
            .filter_map(move |target| continuation(name, &config, target))
            .collect::<Vec<_>>()
    });
    // Matrices of bytes are products' operands in one way; some kinds of models will do.
    let bytes = [&compiled, &narrow].map(|target| target.clone().weights(WeightType::Int8));
    let kept = samples().into_iter().step_by(3).zip(bytes.iter().cycle());
    let kept = kept.filter_map(|((name, config), target)| continuation(name, &config, target));
    let wide = wide_samples().into_iter().flat_map(|(name, config)| {
        let targets = [WeightType::F32, WeightType::Int8, WeightType::Int4]
            .into_iter()
            .flat_map(|kept| [&compiled, &narrow].map(|target| target.clone().weights(kept)));
        targets.filter_map(|target| continuation(name, &config, &target)).collect::<Vec<_>>()
    });
    let cases: Vec<_> = cases.into_iter().chain(others).chain(parts).chain(kept).chain(wide).collect();
    let mut renderer = Renderer::new(Options::default());
    let programs: Vec<_> = cases.iter().map(|case| renderer.program(&case.plan).expect(&case.name)).collect();
    let emulator = Emulator::build(renderer.functions()).unwrap_or_else(|error| panic!("{error}"));
    let [first, others @ ..] =
        ThreadSchedule::ALL.map(|schedule| results(&emulator, &cases, &programs, schedule));
    let failures = failures(&cases, &first);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Every sum has one order: whatever the schedule, the results are the same bits.
    assert!(others.iter().all(|other| *other == first), "results depend on the schedule");
}

/// Of attention, its gradients and the classifier. The gradient of the queries does not compute all scores once more to find what their gradients sum up to: that is Σ dO·O.
#[test]
fn gradients_of_attention_take_one_sweep() {
    let config = GptConfig {
        vocabulary: 11,
        context: 256,
        layers: 1,
        heads: 2,
        width: 128,
        dropout: 0.0,
        ..GptConfig::default()
    };
    let narrow = Target::cpu().precision(ProductType::Bf16);
    let step = ModelConfig::from(config).train_step(2, &Optimizer::adamw(1e-2), None).expect("a step");
    let sweeps = |stages: Stages| {
        let mut graph = step.program.graph.clone();
        stages.simplify(&mut graph, None, &mut |_, _| {}).expect("passes");
        let plan = stages.plan(stages.fuse(&graph).expect("fuses"));
        let mut renderer = Renderer::new(Options::default());
        renderer.program(&plan).expect("renders");
        let texts =
            renderer.functions().iter().map(|function| function.text.matches("for_each_tile<").count());
        let mut sweeps: Vec<_> = texts.filter(|count| *count > 0).collect();
        sweeps.sort();
        sweeps
    };
    let memory = MemoryStrategy::NONE;
    assert_eq!(sweeps(Stages::new(&narrow, memory)), [1, 1, 1, 2]);
    assert_eq!(sweeps(Stages::of_gpu(&narrow, memory, narrow.accepts())), [1, 1, 1, 1]);
}

/// With clipping no update can begin before all gradients are there, and then they all can. Without it, updates of matrices
/// belong to the products that their gradients are, and those of vectors are together in the end.
#[test]
fn the_optimizer_is_one_launch() {
    for (layers, clip) in [(1, Some(1.0)), (6, Some(1.0)), (1, None), (6, None)] {
        let config =
            GptConfig { vocabulary: 11, context: 6, heads: 2, width: 8, layers, ..GptConfig::default() };
        let step = config.train_step(3, &Optimizer::adamw(1e-2), clip).expect("a step");
        let plan =
            lower(&step.program.graph, &Target::cpu(), MemoryStrategy::NONE).expect("lowers").program.body;
        let program = Renderer::new(Options::default()).program(&plan).expect("renders");
        let updates = |kernel: &usize| {
            let kernel = &plan.graph.kernels[*kernel];
            kernel.form == Form::Map && kernel.name.contains("optimizer")
        };
        let launches = program.steps.iter().filter_map(|step| match step {
            StreamOp::Launch(launch) => Some(launch.kernels.iter().filter(|kernel| updates(kernel)).count()),
            StreamOp::Clear { .. }
            | StreamOp::Copy { .. }
            | StreamOp::Product(_)
            | StreamOp::Exchange { .. }
            | StreamOp::Gather { .. }
            | StreamOp::Sum { .. } => None,
        });
        let counts: Vec<_> = launches.filter(|count| *count > 0).collect();
        // Some kernels update several parameters.
        let least = if clip.is_some() { 6 } else { 2 };
        assert!(counts.len() == 1 && counts[0] >= least, "{layers} layers, {clip:?}: {counts:?}");
        let kernels = plan.graph.kernels.iter().filter(|kernel| kernel.name.contains("optimizer"));
        let in_products = kernels.filter(|kernel| matches!(kernel.form, Form::Contraction(_))).count();
        // QKV, its projection and both of the feed-forward block.
        assert_eq!(in_products >= 4 * layers, clip.is_none(), "{layers} layers, {clip:?}: {in_products}");
    }
}

/// The body of a loop is compiled once: iterations are launches of its functions at other addresses.
#[test]
fn functions_do_not_depend_on_the_iterations_of_loops() {
    let [few, many] = [16, 48].map(|context| {
        let config = RecurrentLmConfig {
            vocabulary: 11,
            context,
            width: 8,
            hidden: 12,
            dropout: 0.1,
            ..RecurrentLmConfig::default()
        };
        let step = config.train_step(3, &Optimizer::adamw(1e-2), Some(1.0)).expect("a step");
        let plan = plan_of_gpu(&step.program.graph, &Target::cpu());
        let mut renderer = Renderer::new(Options::default());
        let steps = renderer.program(&plan).expect("renders").steps;
        let is_loop = |kernel: &usize| matches!(plan.graph.kernels[*kernel].form, Form::Loop(_));
        let launched = steps.iter().filter_map(|step| match step {
            StreamOp::Launch(launch) => launch.kernels.iter().any(is_loop).then_some(launch.function),
            _ => None,
        });
        let launched: Vec<_> = launched.collect();
        let distinct = launched.iter().collect::<BTreeSet<_>>().len();
        (renderer.functions().len(), distinct, launched.len())
    });
    assert_eq!((few.0, few.1), (many.0, many.1));
    assert!(few.1 > 0 && many.2 > 2 * few.2, "{few:?} {many:?}");
}

/// What the presets' own sizes ask for: a quarter of the functions, each compiled for one of the architectures, others for each number that
/// `KERNFUSION_SEED` is, which changes with the commit; or every function for each of them if `KERNFUSION_ARCHITECTURES` is `all`, which takes
/// nine minutes.
#[cfg(feature = "cuda")]
mod presets_compile {
    use super::*;
    use kernfusion_cuda::Function;
    use kernfusion_cuda::nvrtc::{Form, compile, is_present};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Those of A100, H100 and B200.
    const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_100a"];

    /// The one with products of warpgroups.
    const HOPPER: &str = "sm_90a";

    /// One function in four is compiled, unless all are.
    const SHARES: usize = 4;

    /// Presets whose kernels have the form of those of another one.
    const EQUAL_IN_FORM: [&str; 7] =
        ["gpt2-medium", "gpt2-large", "gpt2-xl", "llama-1b", "bert-base", "rnn-tiny", "gru-tiny"];

    /// A function's text with a number for each name of a buffer: layers have the same kernels but for names.
    fn anonymous(function: &Function) -> String {
        let code: String =
            function.text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let mut numbers = BTreeMap::new();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = code.split_inclusive(|c| !is_word(c)).map(|word| {
            let name = word.trim_end_matches(|c| !is_word(c));
            let next = numbers.len();
            match name.starts_with("g_") || name.starts_with("kernel_") {
                true => format!("{}{}", numbers.entry(name).or_insert(next), &word[name.len()..]),
                false => word.into(),
            }
        });
        words.collect()
    }

    #[test]
    fn every_kernel_of_the_presets_compiles_without_spills() {
        if !is_present() {
            println!("skipped: NVRTC is not installed");
            return;
        }
        // Products of warpgroups are those of H100 alone.
        let [mut renderer, mut of_warpgroups] =
            ["sm_80", HOPPER].map(|architecture| Renderer::new(Options::of(architecture)));
        let mut render = |name: &str, plan: &Plan| {
            for renderer in [&mut renderer, &mut of_warpgroups] {
                renderer.program(plan).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        };
        for preset in presets().into_iter().filter(|preset| !EQUAL_IN_FORM.contains(&preset.name)) {
            // Layers are equal: two have the same kernels as twelve, unless dropout gives each its own random numbers.
            for (precision, layers, dropout) in
                [(ProductType::F32, 2, 0.0), (ProductType::Bf16, 2, 0.0), (ProductType::Bf16, 1, 0.1)]
            {
                let fields = format!("{{\"layers\": {layers}, \"dropout\": {dropout}}}");
                let config = preset.config.with_json(&fields).expect("valid");
                let step =
                    config.train_step(preset.batch, &Optimizer::adamw(1e-3), Some(1.0)).expect("a step");
                let (graph, target) = (&step.program.graph, Target::cpu().precision(precision));
                render(preset.name, &plan_of_gpu(graph, &target));
            }
            let mut forward = vec![preset.config.evaluation(1).expect("forward")];
            let (two, context) =
                (preset.config.with_json("{\"layers\": 2}").expect("valid"), preset.config.context());
            for (length, visible) in [(context.min(128), context.min(128)), (1, context)] {
                let chunk = Chunk { length, visible, capacity: context };
                forward.extend(two.continuation(&Trace::new(), 1, chunk).expect("a program"));
            }
            for precision in [ProductType::F32, ProductType::Bf16] {
                for program in &forward {
                    render(preset.name, &plan_of_gpu(&program.graph, &Target::cpu().precision(precision)));
                }
            }
        }
        let mut seen = BTreeSet::new();
        let [different, of_hopper] = [&renderer, &of_warpgroups].map(|renderer| {
            let functions = renderer.functions().iter();
            functions.filter(|function| seen.insert(anonymous(function))).collect::<Vec<_>>()
        });
        let all = std::env::var_os("KERNFUSION_ARCHITECTURES").is_some_and(|value| value == "all");
        let seed = std::env::var("KERNFUSION_SEED").map_or(0, |seed| seed.parse().expect("a number"));
        let in_turn = |number: usize| match all {
            true => ARCHITECTURES.to_vec(),
            false => vec![ARCHITECTURES[(number + seed) % ARCHITECTURES.len()]],
        };
        let in_turn = different.iter().enumerate().map(|(number, function)| (*function, in_turn(number)));
        let work = in_turn.chain(of_hopper.iter().map(|function| (*function, vec![HOPPER]))).enumerate();
        let is_in_turn = |number: usize| all || (number + seed).is_multiple_of(SHARES);
        let work: Vec<_> = work.filter(|(number, _)| is_in_turn(*number)).map(|(_, work)| work).collect();
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut spills = BTreeSet::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some((function, architectures)) = work.get(number) else { break };
                for architecture in architectures {
                    let binary = compile(function, architecture, Form::Cubin);
                    let binary = binary.unwrap_or_else(|error| panic!("{error}"));
                    let used = binary.resources();
                    if (used.spills, used.local) != (0, 0) {
                        spills.insert(format!("for {architecture}: {}", binary.log));
                    }
                }
            }
            spills
        };
        let spills: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(worker)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        println!("{} functions of {} different ones", work.len(), different.len() + of_hopper.len());
        assert!(spills.is_empty(), "{}", spills.join("\n"));
    }
}
