//! Training runs: settings, resuming, what a run leaves behind.

use super::*;
use crate::record::{Adaptation, attach};
use crate::text::Order;
use kernfusion::compile::{MemoryStrategy, Stages, Target};
use kernfusion::models::GptConfig;
use kernfusion::nn::Lora;
use kernfusion::optim::{Optimizer, Schedule};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

fn corpus() -> Corpus {
    let text = "A compiler reads, thinks, and writes; a model reads, and writes.\n".repeat(9);
    Corpus::from_text("a short text", text).unwrap()
}

fn config() -> GptConfig {
    GptConfig {
        vocabulary: 30,
        context: 8,
        layers: 1,
        heads: 2,
        width: 8,
        dropout: 0.1,
        ..GptConfig::default()
    }
}

fn settings() -> Settings {
    Settings {
        steps: 6,
        batch: 2,
        seed: (3 << 40) + 7,
        optimizer: Optimizer::adamw(1e-2),
        schedule: Schedule::Cosine { warm_up: 2, steps: 6, floor: 0.1 },
        validation_batches: 2,
        validate_every: 2,
        sample_every: 3,
        sample_tokens: 5,
        checkpoint_every: 4,
        ..Settings::default()
    }
}

fn trainer() -> Trainer {
    Trainer::new(config(), settings(), &corpus(), None, Target::cpu().threads(1)).unwrap()
}

fn resumed(directory: &Path) -> Trainer {
    let checkpoint = Checkpoint::load(directory).unwrap();
    let record = Record::read(&checkpoint.meta).unwrap();
    Trainer::resume(checkpoint, record, &corpus(), Target::cpu().threads(1)).unwrap()
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut whole, mut first) = (trainer(), trainer());
    let losses: Vec<_> = (0..6).map(|_| whole.step().unwrap().loss.to_bits()).collect();
    let mut parts: Vec<_> = (0..3).map(|_| first.step().unwrap().loss.to_bits()).collect();
    // Neither a validation nor a sample has an influence.
    first.validation_loss().unwrap();
    first.samples().unwrap();
    first.save(directory.path()).unwrap();
    let mut second = resumed(directory.path());
    assert_eq!((second.steps_done(), second.record()), (3, whole.record()));
    parts.extend((3..6).map(|_| second.step().unwrap().loss.to_bits()));
    assert_eq!(parts, losses);
    assert_eq!(second.validation_loss().unwrap(), whole.validation_loss().unwrap());
    assert_eq!(second.samples().unwrap(), whole.samples().unwrap());
    let content = |trainer: &Trainer| {
        trainer.save(directory.path()).unwrap();
        std::fs::read(directory.path().join(CHECKPOINT_FILE)).unwrap()
    };
    assert_eq!(content(&second), content(&whole));
}

#[test]
fn the_report_follows_the_schedule() {
    let mut trainer = trainer();
    let reports: Vec<_> = (0..3).map(|_| trainer.step().unwrap()).collect();
    assert_eq!(reports.iter().map(|report| report.step).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(reports.iter().map(|report| report.learning_rate).collect::<Vec<_>>(), [5e-3, 1e-2, 1e-2]);
    assert!(reports.iter().all(|report| report.gradient_norm.is_some_and(|norm| norm > 0.0)));
    assert!(reports.iter().all(|report| (report.tokens_per_s * report.seconds - 16.0).abs() < 1e-6));
}

#[test]
fn a_record_survives_its_checkpoint_and_names_what_differs() {
    let record = trainer().record().clone();
    assert_eq!(Record::read(&record.meta(5)).unwrap(), record);
    let mut other = record.clone();
    (other.settings.steps, other.settings.validate_every) = (99, 1);
    record.allows(&other).unwrap();
    other.config = other.config.with_json("{\"layers\": 3}").unwrap();
    other.settings.order = Order::Sequential;
    other.settings.optimizer = Optimizer::sgd(1e-2);
    other.text.sha256 = "0".into();
    let message = record.allows(&other).unwrap_err().to_string();
    let expected = "configuration: the run to resume has other settings: layers is 1, not 3; \
        optimizer.betas is [0.9,0.999], not null; optimizer.epsilon is 1e-8, not null; \
        optimizer.rule is \"adamw\", not \"sgd\"; optimizer.weight_decay is 0.01, not 0.0; \
        optimizer.momentum is null, not 0.0; order is \"random\", not \"sequential\"; \
        the text in a short text has changed since the run began";
    assert_eq!(message, expected);
    let mut other = record.clone();
    (other.text.sha256, other.text.file) = ("0".into(), Some("/b/a short text".into()));
    let message = record.allows(&other).unwrap_err().to_string();
    assert!(message.ends_with("other settings: the text is a short text, not /b/a short text"), "{message}");
}

/// States before and after three steps.
fn trained(adaptation: Adaptation) -> (Trainer, [BTreeMap<String, Vec<f32>>; 2]) {
    let settings = Settings { adaptation, ..settings() };
    let mut trainer = Trainer::new(config(), settings, &corpus(), None, Target::cpu().threads(1)).unwrap();
    let states = |trainer: &Trainer| {
        let value = |name: &String| trainer.states.get(name).unwrap().as_f32().unwrap().to_vec();
        trainer.shapes.keys().map(|name| (name.clone(), value(name))).collect::<BTreeMap<_, _>>()
    };
    let before = states(&trainer);
    for _ in 0..3 {
        trainer.step().unwrap();
    }
    let after = states(&trainer);
    (trainer, [before, after])
}

#[test]
fn frozen_parameters_stay_and_have_no_state() {
    let frozen = vec!["wte".to_string(), "blocks.0.attn".into()];
    let (trainer, [before, after]) = trained(Adaptation { frozen, lora: None });
    for (name, value) in before.iter().filter(|(name, _)| !name.starts_with(OPTIMIZER)) {
        let frozen = name.starts_with("wte") || name.starts_with("blocks.0.attn");
        assert_eq!(after[name] == *value, frozen, "{name}");
        assert_eq!(before.contains_key(&format!("optimizer.m.{name}")), !frozen, "{name}");
    }
    let kept = 30 * 8 + 3 * 8 * 8 + 8 * 8 + 8;
    assert_eq!(trainer.trained_parameters(), config().parameters() - kept);
}

#[test]
fn adapters_alone_are_trained_and_can_be_merged() {
    let lora = Lora { dropout: 0.1, targets: vec!["attn".into(), "mlp.up".into()], ..Lora::new(2) };
    let (mut trainer, [before, after]) = trained(Adaptation { frozen: vec![], lora: Some(lora) });
    for (name, value) in before.iter().filter(|(name, _)| !name.starts_with(OPTIMIZER)) {
        assert_eq!(after[name] != *value, is_adapter(name), "{name}");
    }
    assert_eq!(trainer.trained_parameters(), 2 * (8 + 24) + 2 * (8 + 8) + 2 * (8 + 32));
    let directory = tempfile::tempdir().unwrap();
    trainer.save(directory.path()).unwrap();
    let sample = |checkpoint: Checkpoint| {
        let target = Target::cpu().threads(1);
        crate::generate::Generator::from_checkpoint(checkpoint, &target).unwrap().logits(&[1, 2, 3]).unwrap()
    };
    // The model with its adapters, the same merged, and the adapters put into the model that they began from.
    let merged = sample(Checkpoint::load(directory.path()).unwrap());
    let adapters = Checkpoint::load(&directory.path().join(ADAPTER)).unwrap();
    assert_eq!(adapters.tensors.len(), 6);
    let plain = Trainer::new(config(), settings(), &corpus(), None, Target::cpu().threads(1)).unwrap();
    let base = directory.path().join("base");
    plain.save(&base).unwrap();
    let mut base = Checkpoint::load(&base).unwrap();
    let without = sample(base.clone());
    attach(&mut base, adapters).unwrap();
    assert_eq!(sample(base), merged);
    let adaptation = &trainer.record.settings.adaptation;
    let tokenizer = trainer.record.tokenizer.clone();
    let (states, target) = (&trainer.states, &trainer.target);
    let mut adapted =
        crate::generate::Generator::adapted(adaptation, &config().into(), tokenizer, states, target).unwrap();
    let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart(&adapted.logits(&[1, 2, 3]).unwrap(), &merged) < 1e-5);
    assert!(apart(&without, &merged) > 1e-4);
    assert!(trainer.validation_loss().unwrap().is_some());
}

#[test]
fn adapted_runs_begin_as_the_model_and_are_resumed_exactly() {
    let lora = Some(Lora::new(2));
    let (_, [before, _]) = trained(Adaptation { frozen: vec![], lora: lora.clone() });
    assert!(before["blocks.0.attn.qkv.lora_b"].iter().all(|x| *x == 0.0));
    assert!(before["blocks.0.attn.qkv.lora_a"].iter().any(|x| *x != 0.0));
    let first = |adaptation| {
        let settings = Settings { adaptation, ..settings() };
        let mut trainer =
            Trainer::new(config(), settings, &corpus(), None, Target::cpu().threads(1)).unwrap();
        trainer.validation_loss().unwrap().unwrap()
    };
    assert_eq!(first(Adaptation::default()), first(Adaptation { frozen: vec![], lora: lora.clone() }));
    let directory = tempfile::tempdir().unwrap();
    let (mut whole, _) = trained(Adaptation { frozen: vec![], lora });
    whole.save(directory.path()).unwrap();
    let mut second = resumed(directory.path());
    assert_eq!(second.step().unwrap().loss, whole.step().unwrap().loss);
}

#[test]
fn what_cannot_be_frozen_or_adapted_is_refused() {
    let refused = |adaptation| {
        let settings = Settings { adaptation, ..settings() };
        let trainer = Trainer::new(config(), settings, &corpus(), None, Target::cpu().threads(1));
        trainer.err().expect("it cannot be").to_string()
    };
    let frozen = |path: &str| Adaptation { frozen: vec![path.into()], lora: None };
    assert!(refused(frozen("blocks.1")).ends_with("no parameter under \"blocks.1\", which was to be frozen"));
    let all = ["wte", "wpe", "blocks", "ln_f", "head"].map(String::from).to_vec();
    let message = refused(Adaptation { frozen: all, lora: None });
    assert!(message.ends_with("all parameters are frozen: there is nothing to train"), "{message}");
    let lora = |lora| refused(Adaptation { frozen: vec![], lora: Some(lora) });
    assert!(lora(Lora::new(0)).ends_with("the rank of adapters is 0, but must be at least 1"));
    let message = lora(Lora { targets: vec!["block".into()], ..Lora::new(2) });
    assert!(message.ends_with("the model has no linear layer under block"), "{message}");
}

/// B·A has the shape of the weight, and so has its gradient: neither may be computed.
#[test]
fn the_change_of_an_adapted_weight_is_never_computed() {
    // 48 tokens, a number that no width has.
    let config = GptConfig { width: 64, context: 24, ..config() };
    let adaptation = Adaptation { frozen: vec![], lora: Some(Lora::new(2)) };
    let trace = adaptation.training();
    let loss = config.loss(&trace, 2).unwrap();
    let step = TrainStep::new(&loss, &Optimizer::adamw(1e-3), None).unwrap();
    let products = |graph: &kernfusion_ir::Graph| {
        let shape = |id| graph[id].ty.shape == [192, 64] || graph[id].ty.shape == [64, 192];
        graph.ids().filter(|&id| graph[id].op.name() == "dot_general" && shape(id)).count()
    };
    assert_eq!(products(&step.program.graph), 2);
    let mut graph = step.program.graph.clone();
    let stages = Stages::new(&Target::cpu(), MemoryStrategy::NONE);
    stages.simplify(&mut graph, None, &mut |_, _| {}).unwrap();
    assert_eq!(products(&graph), 0);
}

#[test]
fn a_run_does_what_is_due_and_then_ends() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log.jsonl");
    let mut run = TrainingRun::new(trainer(), directory.path(), Some(&log)).unwrap();
    let mut events = Vec::new();
    let ending = run.run(&AtomicBool::new(false), &mut |event| {
        events.push(match event {
            Event::Row(Row::Step(report)) => format!("step {}", report.step),
            Event::Row(Row::Validation { step, .. }) => format!("validation {step}"),
            Event::Row(Row::Sample { step, sample, .. }) => {
                format!("sample {step} of {}", sample.chars().count())
            }
            Event::Saved { step } => format!("saved {step}"),
        });
    });
    assert_eq!(ending.unwrap(), Ending::Finished);
    let expected = "step 1, step 2, validation 2, step 3, sample 3 of 5, step 4, validation 4, saved 4, step 5, step 6, \
        validation 6, sample 6 of 5, saved 6";
    assert_eq!(events.join(", "), expected);
    let log = std::fs::read_to_string(&log).unwrap();
    let rows = |field: &str| log.lines().filter(|row| row.contains(field)).count();
    assert_eq!(["\"loss\"", "\"val_loss\"", "\"sample\""].map(rows), [6, 3, 2]);
    assert_eq!(
        run.run(&AtomicBool::new(false), &mut |_| panic!("no step is left")).unwrap(),
        Ending::Finished
    );
}

#[test]
fn a_stopped_run_leaves_a_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = TrainingRun::new(trainer(), directory.path(), None).unwrap();
    assert_eq!(run.run(&AtomicBool::new(true), &mut |_| {}).unwrap(), Ending::Stopped);
    assert_eq!(resumed(directory.path()).steps_done(), 1);
}

#[test]
fn a_run_that_diverges_keeps_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let optimizer = Optimizer::sgd(1e30);
    let wild =
        Settings { optimizer, clip: None, schedule: Schedule::Constant, checkpoint_every: 1, ..settings() };
    let trainer = Trainer::new(config(), wild, &corpus(), None, Target::cpu().threads(1)).unwrap();
    let mut run = TrainingRun::new(trainer, directory.path(), None).unwrap();
    let error = run.run(&AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("the loss is ") && error.contains("a lower learning rate may help"), "{error}");
    assert!(resumed(directory.path()).steps_done() >= 1);
}
