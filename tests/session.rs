//! Sessions: a training run of the user's own model that can stop, go on, and be evaluated.

use kernfusion::optim::Schedule;
use kernfusion::prelude::*;
use kernfusion::tensor_file;
use std::collections::BTreeMap;

struct Model {
    hidden: Linear,
    output: Linear,
}

impl Model {
    fn new(trace: &Trace) -> Self {
        Model {
            hidden: Linear::new(trace, "hidden", 3, 8),
            output: Linear::builder(8, 1).bias(false).build(trace, "output"),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        self.output.forward(&Dropout { probability: 0.25 }.forward(&self.hidden.forward(x).tanh()))
    }
}

fn session(seed: u64) -> Session {
    let trace = Trace::training();
    let (x, y) = (trace.input("x", [6, 3], DType::F32), trace.input("y", [6, 1], DType::F32));
    let loss = mse(&Model::new(&trace).forward(&x), &y);
    let step = TrainStep::new(&loss, &Optimizer::adamw(0.02), Some(1.0)).unwrap();
    let schedule = Schedule::WarmUp { steps: 4 };
    step.session(&Target::cpu().threads(2), seed).unwrap().with_schedule(schedule).unwrap()
}

/// The batch of a step.
fn batch(step: u64) -> (HostTensor, HostTensor) {
    let x: Vec<f32> = (0..18).map(|i| ((i * 7 + step * 5) % 11) as f32 / 5.0 - 1.0).collect();
    let y = x.chunks(3).map(|row| row[0] - 2.0 * row[1]);
    (HostTensor::new([6, 1], y), HostTensor::new([6, 3], &x))
}

fn losses(session: &mut Session, steps: u64) -> Vec<f32> {
    let one = |session: &mut Session| {
        let (y, x) = batch(session.steps_done());
        session.step(&[("x", &x), ("y", &y)]).unwrap()
    };
    (0..steps).map(|_| one(session)).collect()
}

#[test]
fn a_session_that_was_saved_goes_on_as_if_it_had_not_stopped() {
    let mut whole = session(7);
    let expected = losses(&mut whole, 9);
    assert_ne!(expected, losses(&mut session(8), 9), "the seed has an influence");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.safetensors");
    let mut first = session(7);
    let mut found = losses(&mut first, 4);
    first.save(&file).unwrap();
    // Another one, which has other parameters and has done steps of its own.
    let mut second = session(1);
    losses(&mut second, 2);
    second.load(&file).unwrap();
    assert_eq!(second.steps_done(), 4);
    found.extend(losses(&mut second, 5));
    assert_eq!(found, expected);
    assert_eq!(second.get("hidden.weight").unwrap(), whole.get("hidden.weight").unwrap());
}

#[test]
fn the_learning_rate_follows_its_schedule() {
    let mut session = session(7);
    let mut rates = vec![];
    for _ in 0..5 {
        rates.push(session.learning_rate());
        losses(&mut session, 1);
    }
    assert_eq!(rates, [0.005, 0.01, 0.015, 0.02, 0.02]);
    let (y, x) = batch(0);
    let outputs = session.step_outputs(&[("y", &y), ("x", &x)]).unwrap();
    assert!(outputs.scalar("grad_norm").unwrap() > 0.0);
}

#[test]
fn evaluation_is_of_the_parameters_of_the_moment() {
    let mut session = session(7);
    let trace = Trace::new();
    let x = trace.input("x", [2, 3], DType::F32);
    let program = trace.finish(&[("y", &Model::new(&trace).forward(&x))]).unwrap();
    let xs = HostTensor::new([2, 3], [1.0f32, 0.5, -0.5, 0.0, 1.0, 2.0]);
    let evaluate =
        |session: &mut Session| session.evaluate(&program, &[("x", &xs)]).unwrap().get("y").cloned().unwrap();
    let before = evaluate(&mut session);
    assert_eq!(evaluate(&mut session), before);
    losses(&mut session, 3);
    assert_ne!(evaluate(&mut session), before);
}

#[test]
fn what_is_wrong_is_named_with_what_there_is() {
    let mut session = session(7);
    let (y, x) = batch(0);
    let refused = |result: kernfusion::Result<f32>| result.unwrap_err().to_string();
    let message = refused(session.step(&[("x", &x), ("z", &y)]));
    assert!(message.starts_with("input \"z\": there is no such input (there are: x, y)"), "{message}");
    let message = refused(session.step(&[("x", &x)]));
    assert!(message.starts_with("input \"y\": is missing; it is f32[6,1]"), "{message}");
    let message = refused(session.step(&[("x", &y), ("y", &y)]));
    assert!(message.starts_with("input \"x\": expects f32[6,3], got f32[6,1]"), "{message}");
    assert!(message.ends_with("; extents are fixed when a program is traced: trace it again for others"));
    let message = refused(session.step(&[]));
    assert_eq!(message, "inputs \"x\" (f32[6,3]) and \"y\" (f32[6,1]) are missing");
    assert_eq!(session.steps_done(), 0);
    let message = session.get("hidden.weigth").unwrap_err().to_string();
    assert!(
        message.contains("there is no state \"hidden.weigth\" (there are: ")
            && message.contains("hidden.weight"),
        "{message}"
    );
}

#[test]
fn files_that_do_not_fit_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.safetensors");
    let mut one = session(7);
    losses(&mut one, 2);
    one.save(&file).unwrap();
    let good = tensor_file::read(&file).unwrap();
    let before = one.get("hidden.weight").unwrap();
    let mut refused = |change: &dyn Fn(&mut BTreeMap<String, HostTensor>)| {
        let mut tensors = good.clone();
        change(&mut tensors);
        tensor_file::write(&file, &tensors).unwrap();
        let message = one.load(&file).unwrap_err().to_string();
        let message =
            message.strip_prefix(&*file.display().to_string()).expect("the file's name").to_string();
        assert_eq!((one.get("hidden.weight").unwrap(), one.steps_done()), (before.clone(), 2));
        message
    };
    let number = || HostTensor::new([1], [1.0f32]);
    let message = refused(&|tensors| _ = tensors.remove("output.weight"));
    assert_eq!(message, " is of another model: it lacks output.weight");
    let message = refused(&|tensors| {
        let names = ["a.weight", "b.weight", "c.weight", "d.weight", "e.weight", "optimizer.m.a.weight"];
        tensors.extend(names.map(|name| (name.to_string(), number())));
        tensors.remove("hidden.weight");
        tensors.remove("output.weight");
        tensors.insert("hidden.bias".into(), number());
    });
    assert_eq!(
        message,
        " is of another model: it has a.weight, b.weight, c.weight and 2 more, which this model lacks; \
         it lacks hidden.weight and output.weight; hidden.bias is f32[1], here f32[8]; \
         it has 1 state of an optimizer that is not this one's"
    );
    let message =
        refused(&|tensors| _ = tensors.insert("session.place".into(), HostTensor::new([1], [1u32])));
    assert_eq!(message, ": \"session.place\" is u32[1], not u32[4]");
    // Parameters alone are a beginning.
    let parameters =
        good.iter().filter(|(name, _)| name.starts_with("hidden.") || name.starts_with("output."));
    let parameters: BTreeMap<_, _> =
        parameters.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    tensor_file::write(&file, &parameters).unwrap();
    one.load(&file).unwrap();
    assert_eq!((one.get("hidden.weight").unwrap(), one.steps_done()), (before, 0));
}

#[test]
fn states_are_loaded_without_a_session_or_the_error_says_what_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let program = |outputs: usize| {
        let trace = Trace::new();
        let x = trace.input("x", [1, 2], DType::F32);
        trace.finish(&[("y", &Linear::new(&trace, "layer", 2, outputs).forward(&x))]).unwrap()
    };
    let values = BTreeMap::from_iter(program(3).initial_parameters(1));
    let message = |values: &BTreeMap<String, HostTensor>, outputs: usize| {
        tensor_file::write(&path, values).unwrap();
        program(outputs).load_states(&path).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(message(&values, 3), Ok(()));
    assert_eq!(
        program(3).load_states(&path).unwrap().get("layer.weight").as_ref(),
        values.get("layer.weight")
    );
    let wide = message(&values, 4).unwrap_err();
    assert!(
        wide.ends_with(
            " is of another model: layer.weight is f32[3,2], here f32[4,2]; layer.bias is f32[3], here f32[4]"
        ),
        "{wide}"
    );
    let mut narrow = values.clone();
    let weight = &values["layer.weight"];
    narrow.insert("layer.weight".into(), HostTensor::new(weight.shape(), [1i8; 6]));
    assert!(message(&narrow, 3).unwrap_err().contains("layer.weight is i8[3,2], here f32[3,2]"));
    narrow.remove("layer.bias");
    narrow.insert("layer.weight".into(), weight.clone());
    narrow.insert("layer.offset".into(), values["layer.bias"].clone());
    let message = message(&narrow, 3).unwrap_err();
    assert!(
        message.ends_with("it has layer.offset, which this model lacks; it lacks layer.bias"),
        "{message}"
    );
}

/// A file has what belongs to the training, and nothing of programs that were evaluated meanwhile.
#[test]
fn states_of_evaluated_programs_are_kept_but_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.safetensors");
    let mut one = session(7);
    losses(&mut one, 2);
    let names = one.states().names();
    let counting = |by: f64| {
        let trace = Trace::new();
        let x = trace.input("x", [2, 3], DType::F32);
        let seen = trace.state("seen", [], DType::F32);
        let next = &seen + by;
        trace.update(&seen, &next);
        trace.finish(&[("y", &Model::new(&trace).forward(&x)), ("count", &next)]).unwrap()
    };
    let xs = HostTensor::new([2, 3], [0.5f32; 6]);
    let mut seen = |by: f64| one.evaluate(&counting(by), &[("x", &xs)]).unwrap().scalar("count").unwrap();
    assert_eq!([seen(1.0), seen(1.0), seen(3.0), seen(1.0)], [1.0, 2.0, 5.0, 6.0]);
    assert_eq!(one.get("seen").unwrap(), HostTensor::new([], [6.0f32]));
    one.set("seen", &HostTensor::new([], [0.5f32])).unwrap();
    assert_eq!(one.evaluate(&counting(1.0), &[("x", &xs)]).unwrap().scalar("count").unwrap(), 1.5);
    assert_eq!(one.states().names(), names);
    // Programs that are compiled over the session's states may add to them, too.
    counting(1.0).compile(one.states(), &Target::cpu()).unwrap();
    one.save(&file).unwrap();
    assert!(!tensor_file::read(&file).unwrap().contains_key("seen"));
    let mut other = session(1);
    other.load(&file).unwrap();
    assert_eq!(losses(&mut other, 3), losses(&mut one, 3));
}

/// Accumulators of microbatches are the compiler's own: a file does not depend on how a batch was divided.
#[test]
fn a_file_is_the_same_for_every_number_of_microbatches() {
    let folder = tempfile::tempdir().unwrap();
    let names = [1, 3].map(|microbatches| {
        let file = folder.path().join(microbatches.to_string());
        let trace = Trace::training();
        let (x, y) = (trace.input("x", [6, 3], DType::F32), trace.input("y", [6, 1], DType::F32));
        let loss = mse(&Model::new(&trace).forward(&x), &y);
        let step = TrainStep::new(&loss, &Optimizer::adam(0.02), Some(1.0)).unwrap();
        let mut session = step.session(&Target::cpu().microbatches(microbatches), 7).unwrap();
        losses(&mut session, 2);
        session.save(&file).unwrap();
        tensor_file::read(&file).unwrap().into_keys().collect::<Vec<_>>()
    });
    assert_eq!(names[0], names[1]);
}

#[test]
fn a_state_that_is_set_has_an_effect_and_must_be_there() {
    let mut one = session(7);
    let mut other = session(8);
    for name in ["hidden.weight", "hidden.bias", "output.weight"] {
        other.set(name, &one.get(name).unwrap()).unwrap();
    }
    let loss = |session: &mut Session| {
        let trace = Trace::new();
        let (x, y) = (trace.input("x", [6, 3], DType::F32), trace.input("y", [6, 1], DType::F32));
        let loss = mse(&Model::new(&trace).forward(&x), &y);
        let ((y, x), program) = (batch(0), trace.finish(&[("loss", &loss)]).unwrap());
        session.evaluate(&program, &[("x", &x), ("y", &y)]).unwrap().scalar("loss").unwrap()
    };
    assert_eq!(loss(&mut one), loss(&mut other));
    let value = one.get("hidden.weight").unwrap();
    let names = one.states().names();
    let expected = "there is no state \"hidden.weigth\" (there are: hidden.weight, ";
    let message = one.set("hidden.weigth", &value).unwrap_err().to_string();
    assert!(message.starts_with(expected), "{message}");
    let message = one.states().set("hidden.weigth", &value).unwrap_err().to_string();
    assert!(message.starts_with(expected), "{message}");
    let message = one.set("hidden.bias", &value).unwrap_err().to_string();
    assert_eq!(message, "state \"hidden.bias\" is f32[8], its new value f32[8,3]");
    assert_eq!(one.states().names(), names);
}

#[test]
fn another_training_begins_from_the_parameters_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("session.safetensors");
    let mut first = session(7);
    losses(&mut first, 3);
    first.save(&file).unwrap();
    let with = |optimizer: &Optimizer, frozen: &[String]| {
        let trace = Trace::training();
        trace.freeze(frozen);
        let (x, y) = (trace.input("x", [6, 3], DType::F32), trace.input("y", [6, 1], DType::F32));
        let loss = mse(&Model::new(&trace).forward(&x), &y);
        TrainStep::new(&loss, optimizer, Some(1.0)).unwrap().session(&Target::cpu(), 3).unwrap()
    };
    let message = |session: &mut Session| session.load(&file).unwrap_err().to_string();
    let mut plain = with(&Optimizer::sgd(0.1), &[]);
    losses(&mut plain, 1);
    let refusal = message(&mut plain);
    assert!(
        refusal.contains(
            "session.safetensors was trained with another optimizer: it has 6 states that this one does not keep \
             and lacks 0 that it keeps; `Session::load_parameters`"
        ),
        "{refusal}"
    );
    let refusal = message(&mut with(&Optimizer::adamw(0.1), &["hidden".into()]));
    assert!(refusal.contains("was trained with other parameters frozen: it has 4 states"), "{refusal}");
    plain.load_parameters(&file).unwrap();
    assert_eq!(plain.steps_done(), 0);
    assert_eq!(plain.get("hidden.weight").unwrap(), first.get("hidden.weight").unwrap());
    // Moments begin anew.
    let mut moments = session(7);
    losses(&mut moments, 2);
    moments.load_parameters(&file).unwrap();
    assert!(moments.get("optimizer.m.hidden.weight").unwrap().to_f64().iter().all(|&x| x == 0.0));
    // A file of a session without moments is no place for Adam to go on from.
    plain.save(&file).unwrap();
    let refusal = message(&mut session(7));
    assert!(refusal.contains("with another optimizer: it has 0 states that"), "{refusal}");
    assert!(refusal.contains("lacks 6"), "{refusal}");
}

#[test]
fn a_session_evaluates_its_own_parameters_only() {
    let mut session = session(7);
    let names = session.states().names();
    let trace = Trace::new();
    let x = trace.input("x", [2, 3], DType::F32);
    let y = Linear::new(&trace, "hiden", 3, 8).forward(&x);
    let misspelt = trace.finish(&[("y", &y)]).unwrap();
    let xs = HostTensor::new([2, 3], [0.5f32; 6]);
    let error = session.evaluate(&misspelt, &[("x", &xs)]).map(drop).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "the states lack parameters of the program: hiden.weight and hiden.bias (there are: hidden.bias, "
        ),
        "{error}"
    );
    assert_eq!(session.states().names(), names, "nothing was added");
    let error = misspelt.compile(&States::new(), &Target::cpu()).map(drop).unwrap_err().to_string();
    assert!(error.contains("lack parameters of the program: hiden.weight"), "{error}");

    let training = Trace::training();
    let y = Model::new(&training).forward(&training.input("x", [2, 3], DType::F32));
    let dropping = training.finish(&[("y", &y)]).unwrap();
    let error = session.evaluate(&dropping, &[("x", &xs)]).map(drop).unwrap_err().to_string();
    assert!(error.contains("draws random numbers") && error.contains("`Trace::new`"), "{error}");
    let word = |x: u32| HostTensor::new([], [x]);
    let given = [("x", &xs), ("seed", &word(1)), ("step", &word(2))];
    session.evaluate(&dropping, &given).expect("with random numbers on request");
}

#[test]
fn inputs_of_a_step_are_the_callers_alone() {
    let mut session = session(7);
    let (y, x) = batch(0);
    let error = session.step(&[("features", &x), ("y", &y)]).unwrap_err().to_string();
    assert_eq!(error, "input \"features\": there is no such input (there are: x, y)");
    let error = session.step(&[("x", &x), ("y", &y), ("seed", &y)]).unwrap_err().to_string();
    assert_eq!(error, "input \"seed\": there is no such input (there are: x, y)");

    let trace = Trace::training();
    let (x, lr) = (trace.input("x", [6, 3], DType::F32), trace.input("lr", [6, 1], DType::F32));
    let loss = mse(&Linear::new(&trace, "linear", 3, 1).forward(&x), &lr);
    let error = TrainStep::new(&loss, &Optimizer::sgd(0.1), None).map(drop).unwrap_err().to_string();
    assert!(error.contains("the input \"lr\" has the name of one that the optimizer adds"), "{error}");

    let trace = Trace::training();
    let loss = trace.input("x", [6, 3], DType::F32).sum_all();
    let error = TrainStep::new(&loss, &Optimizer::sgd(0.1), None).map(drop).unwrap_err().to_string();
    assert!(error.contains("there are no parameters: there is nothing to train"), "{error}");
}

/// What is planned is what is compiled, also where it cannot be.
#[test]
fn microbatches_that_do_not_divide_the_batch_cannot_be_planned() {
    let trace = Trace::training();
    let (x, y) = (trace.input("x", [6, 3], DType::F32), trace.input("y", [6, 1], DType::F32));
    let loss = mse(&Linear::new(&trace, "linear", 3, 1).forward(&x), &y);
    let program = TrainStep::new(&loss, &Optimizer::sgd(0.1), None).unwrap().program;
    let states = program.initial_states(1).unwrap();
    for microbatches in [0, 4, 1000] {
        let target = Target::cpu().microbatches(microbatches);
        let planned = planned_memory(&program.graph, &states, &target).map(drop).unwrap_err().to_string();
        let compiled = program.compile(&states, &target).map(drop).unwrap_err().to_string();
        assert_eq!(planned, compiled);
        assert!(planned.contains(&format!("in {microbatches} microbatches")), "{planned}");
    }
    let target = Target::cpu().microbatches(3);
    assert_eq!(planned_memory(&program.graph, &states, &target).unwrap().microbatches, 3);
}

/// What owns a program can go to a thread that serves or trains.
#[test]
fn sessions_and_compiled_programs_go_from_thread_to_thread() {
    fn is_send<T: Send>() {}
    is_send::<Session>();
    is_send::<kernfusion::compile::Compiled>();
    is_send::<kernfusion::compile::Pending>();
    is_send::<TrainStep>();
    is_send::<States>();
    let (mut one, mut other) = (session(7), session(7));
    let there = std::thread::spawn(move || {
        let found = losses(&mut other, 3);
        (found, other)
    });
    let (mut found, mut other) = there.join().unwrap();
    found.extend(losses(&mut other, 2));
    assert_eq!(found, losses(&mut one, 5));
}
