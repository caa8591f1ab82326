//! Methods on small models: what is masked plays no part, rewards are learnt, policies improve.

use super::examples::{Example, Rows};
use super::*;
use crate::checkpoint::{Checkpoint, Tensor32};
use crate::generate::Generator;
use crate::jsonl::read_rows;
use crate::record::Adaptation;
use crate::testing::evaluated;
use crate::text::{CharTokenizer, Tokenizer};
use kernfusion::HostTensor;
use kernfusion::compile::Target;
use kernfusion::models::GptConfig;
use kernfusion::nn::Lora;
use kernfusion::optim::Optimizer;
use kernfusion::trace::Trace;
use std::collections::BTreeMap;

const LETTERS: &str = "abcdefgh";

fn config() -> GptConfig {
    GptConfig { vocabulary: 8, context: 12, layers: 1, heads: 2, width: 16, ..GptConfig::default() }
}

fn target() -> Target {
    Target::cpu().threads(1)
}

/// A model that knows nothing yet.
fn model() -> Pretrained {
    let program = config().forward(1, 1).unwrap();
    let shapes: BTreeMap<_, _> =
        program.parameters.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
    let value = |(name, tensor): (String, HostTensor)| {
        let data = tensor.as_f32().unwrap().to_vec();
        let shape = shapes[&name].clone();
        (name, Tensor32 { shape, data })
    };
    let tensors = program.initial_parameters(5).map(value).collect();
    Pretrained {
        config: config(),
        tokenizer: Tokenizer::Characters(CharTokenizer::from_text(LETTERS)),
        tensors,
    }
}

fn tuning(rate: f64) -> Tuning {
    Tuning { optimizer: Optimizer::adamw(rate), ..Tuning::default() }
}

#[test]
fn neither_targets_of_prompts_nor_padding_have_an_influence() {
    let loss = supervised::response_loss(&Trace::training(), &config(), 2).unwrap();
    let trace = loss.trace().clone();
    let (names, tensors): (Vec<_>, Vec<_>) =
        trace.parameters().into_iter().map(|(parameter, tensor)| (parameter.name, tensor)).unzip();
    let gradients = loss.grad(&tensors.iter().collect::<Vec<_>>());
    let outputs: Vec<_> = names.iter().map(|name| format!("grad.{name}")).collect();
    let outputs = outputs.iter().map(String::as_str).zip(&gradients).chain([("loss", &loss)]);
    let program = trace.finish(&outputs.collect::<Vec<_>>()).unwrap();
    let examples = [
        Example { tokens: vec![1, 2, 3, 4, 5, 6], prompt: 3 },
        Example { tokens: vec![7, 0, 1, 2], prompt: 1 },
    ];
    let rows = Rows::new(&examples, 12);
    let count = rows.count();
    let run = |x: &HostTensor, y: &HostTensor| {
        evaluated(&program, &[("x", x), ("y", y), ("mask", &rows.mask), ("count", &count)])
    };
    let expected = run(&rows.x, &rows.y);
    let changed = |tensor: &HostTensor, places: &[usize]| {
        let mut values = tensor.to_f64();
        places.iter().for_each(|&place| values[place] = 7.0 - values[place]);
        HostTensor::from_f64(&tensor.ty(), &values)
    };
    // The first row has five inputs, of whose targets two are the prompt's; the second row has three.
    let padding: Vec<_> = (5..12).chain(12 + 3..24).collect();
    let unlearnt: Vec<_> = [0, 1].into_iter().chain(padding.iter().copied()).collect();
    assert_eq!(rows.mask.to_f64().iter().sum::<f64>(), 6.0);
    assert_eq!(run(&changed(&rows.x, &padding), &changed(&rows.y, &unlearnt)), expected);
    // While the rest has one.
    for (x, y) in [(&[0][..], &[][..]), (&[], &[2]), (&[14], &[])] {
        let found = run(&changed(&rows.x, x), &changed(&rows.y, y));
        assert!(
            found["grad.head.weight"] != expected["grad.head.weight"] && found["loss"] != expected["loss"]
        );
    }
}

#[test]
fn rows_that_do_not_fit_are_named() {
    let tokenizer = Tokenizer::Characters(CharTokenizer::from_text(LETTERS));
    let refused =
        |prompt, response| Example::new(&tokenizer, [prompt, response], 4, 3).unwrap_err().to_string();
    assert!(
        refused("abcde", "a")
            .ends_with("row 3: the prompt has 5 tokens, the model reads 4: no place is left for a response")
    );
    assert!(refused("", "a").ends_with("row 3: prompt and response must have a token each at least"));
    assert!(refused("a", "x").contains("row 3: unknown character 'x'"));
    let cut = Example::new(&tokenizer, ["ab", "cdefgh"], 4, 1).unwrap();
    assert_eq!(cut, Example { tokens: vec![0, 1, 2, 3, 4], prompt: 2 });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows.jsonl");
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        read_rows::<Prompt>(&file).map_err(|error| error.to_string())
    };
    assert_eq!(read("{\"prompt\": \"a\"}\n\n").unwrap(), [Prompt { prompt: "a".into() }]);
    assert!(
        read("{\"prompt\": \"a\"}\n{\"promt\": 1}")
            .unwrap_err()
            .contains("rows.jsonl, line 2: unknown field `promt`")
    );
    assert!(read("\n").unwrap_err().ends_with("rows.jsonl has no rows"));
}

/// Each letter is answered by the next one, three times.
fn demonstrations() -> Vec<Demonstration> {
    let next = |c: char| LETTERS.chars().cycle().skip_while(|&other| other != c).nth(1).unwrap();
    let row = |c: char| Demonstration { prompt: c.into(), response: next(c).to_string().repeat(3) };
    LETTERS.chars().map(row).collect()
}

#[test]
fn responses_are_learnt_with_adapters_too() {
    for lora in
        [None, Some(Lora { targets: vec!["attn".into(), "mlp".into(), "head".into()], ..Lora::new(4) })]
    {
        let rate = if lora.is_some() { 3e-2 } else { 1e-2 };
        let adaptation = Adaptation { frozen: vec![], lora };
        let settings = Tuning { adaptation, ..tuning(rate) };
        let mut run = Supervised::new(model(), &demonstrations(), settings, &target()).unwrap();
        let losses: Vec<_> = (0..150).map(|_| run.step().unwrap()).collect();
        assert!((losses[0] - 8f32.ln()).abs() < 0.1 && losses[149] < 0.2, "{} {}", losses[0], losses[149]);
        let directory = tempfile::tempdir().unwrap();
        run.save(directory.path()).unwrap();
        let checkpoint = Checkpoint::load(directory.path()).unwrap();
        let mut generator = Generator::from_checkpoint(checkpoint, &target()).unwrap();
        let greedy = crate::sample::Sampler::new(0.0, None, None, 1).unwrap();
        assert_eq!(generator.generate("c", 3, &greedy, &mut |_| {}).unwrap(), "ddd");
    }
}

/// The better response has more of the letter a.
fn preferences() -> Vec<Preference> {
    let letters: Vec<char> = LETTERS.chars().collect();
    let row = |n: usize| {
        // Other letters, and places for the letter a that go round.
        let response = |salt: usize, places: &[usize]| -> String {
            let letter =
                |i| if places.contains(&i) { 'a' } else { letters[(n * n + n * i + salt * i) % 7 + 1] };
            (0..4).map(letter).collect()
        };
        let (chosen, rejected) =
            (response(3, &[n % 4, (n + 1 + n / 4 % 3) % 4]), response(5, &[(n / 3) % 4]));
        Preference { prompt: letters[n % 8].into(), chosen, rejected }
    };
    (0..24).map(row).collect()
}

#[test]
fn a_reward_model_learns_what_is_preferred() {
    let mut run = RewardModel::new(model(), &preferences(), tuning(3e-3), &target()).unwrap();
    let losses: Vec<_> = (0..150).map(|_| run.step().unwrap()).collect();
    assert!((losses[0] - 2f32.ln()).abs() < 0.2 && losses[149] < 0.1, "{} {}", losses[0], losses[149]);
    assert_eq!(run.accuracy(&target()).unwrap(), 1.0);
    let directory = tempfile::tempdir().unwrap();
    run.save(directory.path()).unwrap();
    let checkpoint = || Checkpoint::load(directory.path()).unwrap();
    let mut scorer = Scorer::from_checkpoint(checkpoint(), &target()).unwrap();
    let row = &preferences()[5];
    let mut reward = |response: &str| {
        let tokens = model().tokenizer.encode(&format!("{}{response}", row.prompt)).unwrap();
        let mut own = run.scorer(&target()).unwrap();
        let reward = scorer.score(&tokens).unwrap();
        assert_eq!(own.score(&tokens).unwrap(), reward, "as in the run that has learnt it");
        reward
    };
    let (chosen, rejected) = (reward(&row.chosen), reward(&row.rejected));
    assert!(chosen > rejected + 1.0, "{chosen} {rejected}");
    let error = Generator::from_checkpoint(checkpoint(), &target()).err().unwrap().to_string();
    assert!(error.contains("not of this model reward.weight"), "{error}");
}

/// The share of the letter a in a response.
fn share(tokens: &[i32], prompt: usize) -> crate::Result<f32> {
    let response = &tokens[prompt..];
    Ok(response.iter().filter(|&&token| token == 0).count() as f32 / response.len() as f32)
}

/// The best policy under the price β gives a letter the odds e^(reward/(β·length)) more; here the reward of one letter is 1/8.
#[test]
fn ppo_raises_the_reward_and_stays_near_the_reference() {
    let run = |beta: f64| {
        let settings = PpoSettings {
            tuning: Tuning { batch: 8, ..tuning(3e-3) },
            responses: 32,
            length: 8,
            beta,
            ..PpoSettings::default()
        };
        let prompts: Vec<String> = LETTERS.chars().map(String::from).collect();
        let mut ppo = Ppo::new(model(), &prompts, settings, &target()).unwrap();
        let iterations: Vec<_> = (0..30).map(|_| ppo.iterate(&mut share).unwrap()).collect();
        let directory = tempfile::tempdir().unwrap();
        ppo.save(directory.path()).unwrap();
        Generator::from_checkpoint(Checkpoint::load(directory.path()).unwrap(), &target()).unwrap();
        iterations
    };
    let (cheap, dear) = (run(0.02), run(0.2));
    for iterations in [&cheap, &dear] {
        for Iteration { iteration, reward, divergence, loss, .. } in iterations.iter().step_by(5) {
            println!("{iteration}: reward {reward:.3}, divergence {divergence:.3}, loss {loss:.3}");
        }
    }
    let last = |iterations: &[Iteration], of: fn(&Iteration) -> f64| {
        iterations[25..].iter().map(of).sum::<f64>() / iterations[25..].len() as f64
    };
    assert!(cheap[0].reward < 0.25 && cheap[0].divergence < 1e-6, "{:?}", cheap[0]);
    assert!(last(&cheap, |i| i.reward) > 0.7, "{:?}", cheap[29]);
    // All letters a would be 8·ln 8 = 16.6 nats away.
    assert!(last(&cheap, |i| i.divergence) < 16.0, "{:?}", cheap[29]);
    assert!(last(&dear, |i| i.divergence) < 2.0, "{:?}", dear[29]);
    assert!(last(&dear, |i| i.reward) > dear[0].reward, "{:?}", dear[29]);
}

#[test]
fn settings_of_ppo_that_cannot_be() {
    let refused = |settings: PpoSettings| {
        Ppo::new(model(), &["abc".into()], settings, &target()).err().unwrap().to_string()
    };
    let settings = PpoSettings { length: 8, ..PpoSettings::default() };
    assert!(
        refused(PpoSettings { responses: 12, ..settings.clone() })
            .ends_with("12 responses are no multiple of minibatches of 8")
    );
    assert!(refused(PpoSettings { lambda: 1.5, ..settings.clone() }).ends_with("lambda 1.5 is out of range"));
    let message = refused(PpoSettings { length: 11, ..settings });
    assert!(message.ends_with(
        "row 1: 3 tokens of the prompt and 11 of a response do not fit the model, which reads 12"
    ));
}
