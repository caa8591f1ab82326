//! Layers against plain code, gradients against central differences, dropout's masks.

use super::*;
use crate::loss::*;
use crate::prelude::{Init, Trace};
use crate::testing::{assert_close, check_gradients, evaluate, random, value};
use crate::trace::Tensor;
use kernfusion_ir::DType;

/// Two heads of three.
fn attention() -> AttentionConfig {
    AttentionConfig { qkv_bias: true, std: 0.5, residual_std: 0.3, ..AttentionConfig::causal(6, 2) }
}

fn block() -> BlockConfig {
    BlockConfig {
        width: 6,
        dropout: 0.0,
        norm: NormPlace::Pre,
        normalization: Normalization::Layer,
        epsilon: 1e-5,
        residual_scale: 1.0,
        attention: SelfAttentionConfig::Heads(attention()),
        cross: None,
        feed_forward: FeedForwardConfig {
            width: 6,
            hidden: 24,
            activation: Activation::GeluTanh,
            gated: false,
            bias: true,
            std: 0.5,
            residual_std: 0.3,
        },
        experts: None,
    }
}

#[test]
fn activations_have_their_values_and_gradients() {
    let x = vec![-30.0, -1.5, -0.2, 0.0, 0.4, 2.0, 40.0];
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Φ(x) of the points above, to 12 digits (Abramowitz and Stegun, table 26.1, and its symmetry).
    let phi = [0.0, 0.066807201269, 0.420740290561, 0.5, 0.655421741610, 0.977249868052, 1.0];
    let run = |build: fn(&Tensor) -> Tensor| value(&[(&[7], x.clone())], |_, x| build(&x[0]));
    let plain = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(x)).collect::<Vec<_>>();
    assert_close(&run(Tensor::relu), &plain(&|x| x.max(0.0)), 0.0);
    assert_close(&run(|x| x.leaky_relu(0.1)), &plain(&|x| x.max(0.1 * x)), 1e-15);
    assert_close(&run(Tensor::sigmoid), &plain(&sigmoid), 1e-15);
    assert_close(&run(Tensor::swish), &plain(&|x| x * sigmoid(x)), 1e-15);
    assert_close(&run(Tensor::softplus), &plain(&|x| x.exp().ln_1p()), 1e-12);
    let gelu: Vec<_> = x.iter().zip(phi).map(|(x, phi)| x * phi).collect();
    assert_close(&run(Tensor::gelu), &gelu, 1e-11);
    let tanh =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    assert_close(&run(|x| x.activate(Activation::GeluTanh)), &plain(&tanh), 1e-14);
    let smooth: [fn(&Tensor) -> Tensor; 5] =
        [Tensor::sigmoid, Tensor::swish, Tensor::softplus, Tensor::gelu, Tensor::gelu_tanh];
    for build in smooth {
        check_gradients(&[(&[7], x.clone())], |_, x| build(&x[0]).sum_all());
    }
    let kinked = vec![-1.0, 0.5, 2.0];
    check_gradients(&[(&[3], kinked.clone())], |_, x| (x[0].relu() + x[0].leaky_relu(0.2)).sum_all());
    let slope = |_: &Trace, x: &[Tensor]| x[0].relu().sum_all().grad(&[&x[0]]).remove(0);
    assert_eq!(value(&[(&[3], vec![-1.0, 0.0, 1.0])], slope), [0.0, 0.0, 1.0]);
}

#[test]
fn losses_have_their_values_and_gradients() {
    let (x, t) = (random(1, 8, -4.0, 4.0), random(2, 8, 0.0, 1.0));
    let inputs: [(&[usize], _); 2] = [(&[8], x.clone()), (&[8], t.clone())];
    let mean = |f: &dyn Fn(f64, f64) -> f64| x.iter().zip(&t).map(|(&x, &t)| f(x, t)).sum::<f64>() / 8.0;
    let expected = mean(&|x, t| (x - t).powi(2));
    assert_close(&value(&inputs, |_, x| mse(&x[0], &x[1])), &[expected], 1e-14);
    let expected = mean(&|x, t| t * (-x).exp().ln_1p() + (1.0 - t) * x.exp().ln_1p());
    assert_close(&value(&inputs, |_, x| bce_with_logits(&x[0], &x[1])), &[expected], 1e-13);
    assert_close(&value(&inputs, |_, x| bce(&x[0].sigmoid(), &x[1])), &[expected], 1e-13);
    check_gradients(&inputs, |_, x| bce_with_logits(&x[0], &x[1]) + mse(&x[0], &x[1]));
    check_gradients(&inputs, |_, x| bce(&x[0].sigmoid(), &x[1]));
    let certain: [(&[usize], _); 2] = [(&[2], vec![0.0, 1.0]), (&[2], vec![1.0, 1.0])];
    let gradient = |_: &Trace, x: &[Tensor]| bce(&x[0], &x[1]).grad(&[&x[0]]).remove(0);
    assert!(value(&certain, gradient).iter().all(|slope| slope.is_finite()));
}

#[test]
fn cross_entropy_is_the_mean_negative_log_probability() {
    let x = random(3, 2 * 3 * 5, -3.0, 3.0);
    let classes = [4usize, 0, 2, 2, 1, 3];
    let row = |(i, &class): (usize, &usize)| {
        let row = &x[i * 5..i * 5 + 5];
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[class]
    };
    let expected = classes.iter().enumerate().map(row).sum::<f64>() / 6.0;
    let targets = |trace: &Trace| {
        let targets: Vec<_> =
            classes.iter().map(|&class| trace.full([1], class as f64, DType::I32)).collect();
        trace.concat(&targets.iter().collect::<Vec<_>>(), 0).reshape([2, 3])
    };
    let inputs: [(&[usize], _); 1] = [(&[2, 3, 5], x.clone())];
    assert_close(&value(&inputs, |trace, x| cross_entropy(&x[0], &targets(trace))), &[expected], 1e-14);
    check_gradients(&inputs, |trace, x| cross_entropy(&x[0], &targets(trace)));
}

#[test]
fn linear_embedding_and_norm_are_their_formulas() {
    let trace = Trace::new();
    let (x, ids) = (trace.input("x", [2, 3], DType::F32), trace.input("ids", [2], DType::I32));
    let norm = LayerNorm::new(&trace, "norm", 3);
    let linear = Linear::builder(3, 2).init(Init::Zeros).build(&trace, "linear");
    let other = Embedding::new(&Trace::new(), "embedding", 4, 3);
    assert_eq!(other.weight.shape(), [4, 3]);
    assert_eq!(other.weight.trace().parameters()[0].0.init, Init::Normal { std: 1.0 });
    let embedding = Embedding::builder(4, 3).init(Init::Zeros).build(&trace, "embedding");
    let outputs = [
        ("norm", norm.forward(&x)),
        ("linear", linear.forward(&x)),
        ("vectors", embedding.forward(&ids)),
        ("first", embedding.first(2)),
        ("logits", embedding.logits(&x)),
    ];
    let named: Vec<_> = outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let program = trace.finish(&named).expect("correct");
    let names: Vec<_> = program.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["norm.weight", "norm.bias", "linear.weight", "linear.bias", "embedding.weight"]);
    let table: Vec<_> = (0..12).map(f64::from).collect();
    let inputs = [
        ("x", vec![1.0, 2.0, 6.0, -1.0, 0.0, 1.0]),
        ("ids", vec![3.0, 1.0]),
        ("norm.weight", vec![1.0, 2.0, 3.0]),
        ("norm.bias", vec![0.1, 0.2, 0.3]),
        ("linear.weight", vec![1.0, 0.0, -1.0, 2.0, 1.0, 0.5]),
        ("linear.bias", vec![10.0, 20.0]),
        ("embedding.weight", table),
    ];
    let results = evaluate(&program, &inputs);
    let [first, second] = [(14f64 / 3.0 + 1e-5).sqrt(), (2f64 / 3.0 + 1e-5).sqrt()];
    let expected = [
        -2.0 / first + 0.1,
        -2.0 / first + 0.2,
        9.0 / first + 0.3,
        -1.0 / second + 0.1,
        0.2,
        3.0 / second + 0.3,
    ];
    // Epsilon is a constant of f32.
    assert_close(&results["norm"], &expected, 1e-7);
    assert_eq!(results["linear"], [5.0, 27.0, 8.0, 18.5]);
    assert_eq!(results["vectors"], [9.0, 10.0, 11.0, 3.0, 4.0, 5.0]);
    assert_eq!(results["first"], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(results["logits"], [14.0, 41.0, 68.0, 95.0, 2.0, 2.0, 2.0, 2.0]);
}

/// Attention head by head and row by row.
fn plain_attention(x: &[f64], qkv: &[f64], bias: &[f64], length: usize) -> Vec<f64> {
    let (width, head_width) = (6, 3);
    let projected = |t: usize, row: usize| {
        (0..width).map(|k| x[t * width + k] * qkv[row * width + k]).sum::<f64>() + bias[row]
    };
    let mut result = vec![0.0; length * width];
    for (t, column) in (0..length).flat_map(|t| (0..width).map(move |column| (t, column))) {
        let head = column / head_width * head_width;
        let score = |s: usize| {
            let terms = (head..head + head_width).map(|i| projected(t, i) * projected(s, width + i));
            (terms.sum::<f64>() / (head_width as f64).sqrt()).exp()
        };
        let total: f64 = (0..=t).map(score).sum();
        let mixed = (0..=t).map(|s| score(s) * projected(s, 2 * width + column));
        result[t * width + column] = mixed.sum::<f64>() / total;
    }
    result
}

#[test]
fn attention_agrees_with_plain_code_and_sees_no_future() {
    let (batch, length, width) = (2, 5, 6);
    let trace = Trace::training();
    let x = trace.input("x", [batch, length, width], DType::F32);
    let attention = MultiHeadAttention::new(&trace, "attn", &attention());
    let program = trace.finish(&[("y", &attention.forward(&x))]).expect("correct");
    let values = random(4, batch * length * width, -1.0, 1.0);
    let (qkv, bias) = (random(5, 3 * width * width, -1.0, 1.0), random(6, 3 * width, -0.5, 0.5));
    let identity = (0..width * width).map(|at| f64::from(u8::from(at / width == at % width))).collect();
    let inputs = [
        ("x", values.clone()),
        ("attn.qkv.weight", qkv.clone()),
        ("attn.qkv.bias", bias.clone()),
        ("attn.proj.weight", identity),
    ];
    let expected: Vec<_> =
        values.chunks(length * width).flat_map(|x| plain_attention(x, &qkv, &bias, length)).collect();
    // The scale 1/√3 is a constant of f32.
    assert_close(&evaluate(&program, &inputs)["y"], &expected, 1e-7);
}

/// Rotated rows of ones at these positions, six numbers each.
fn rotated_ones(rope: Rope, positions: &[usize]) -> Vec<f64> {
    let trace = Trace::new();
    let ones = trace.full([41, 6], 1.0, DType::F32);
    let rotated = rope.rotate(&ones, &trace.arange(41, DType::I32));
    let program = trace.finish(&[("y", &rotated)]).expect("correct");
    let rows = evaluate(&program, &[]).remove("y").expect("the output");
    positions.iter().flat_map(|position| rows[6 * position..][..6].to_vec()).collect()
}

#[test]
fn scaled_rotary_positions_turn_more_slowly() {
    let plain = Rope { base: 30.0, ..Rope::default() };
    let scaled = |scaling| Rope { scaling: Some(scaling), ..plain };
    let linear = scaled(RopeScaling::Linear { factor: 4.0 });
    assert_close(&rotated_ones(linear, &[0, 4, 12]), &rotated_ones(plain, &[0, 1, 3]), 1e-6);
    // Pairs turn by 1, 0.322 and 0.104 radians a position: within 32 positions 5.1, 1.6 and 0.53 times.
    let llama3 = |low, high| scaled(RopeScaling::Llama3 { factor: 4.0, low, high, context: 32 });
    assert_close(&rotated_ones(llama3(6.0, 7.0), &[3, 40]), &rotated_ones(linear, &[3, 40]), 1e-6);
    assert_close(&rotated_ones(llama3(0.1, 0.5), &[3, 40]), &rotated_ones(plain, &[3, 40]), 1e-6);
    let mixed = rotated_ones(llama3(1.0, 4.0), &[5]);
    let frequency = 30f64.powf(-1.0 / 3.0);
    let kept = (32.0 * frequency / std::f64::consts::TAU - 1.0) / 3.0;
    let angles = [5.0, 5.0 * frequency * (kept + (1.0 - kept) / 4.0), 5.0 * 30f64.powf(-2.0 / 3.0) / 4.0];
    let expected: Vec<_> =
        angles.iter().flat_map(|angle| [angle.cos() - angle.sin(), angle.sin() + angle.cos()]).collect();
    assert_close(&mixed, &expected, 1e-5);
    let fault = |scaling: RopeScaling| scaling.fault();
    assert_eq!(fault(RopeScaling::Linear { factor: 8.0 }), None);
    assert!(fault(RopeScaling::Linear { factor: 0.0 }).is_some_and(|fault| fault.contains("factor 0")));
    let crossed = RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 1.0, context: 8192 };
    assert!(fault(crossed).is_some_and(|fault| fault.contains("low 4, which is not below high 1")));
}

#[test]
fn relative_positions_have_the_buckets_of_their_distances_and_differentiate() {
    let shape = RelativeShape { buckets: 8, distance: 20 };
    // As the paper's code computes them: exact up to half of the buckets of a side, then logarithmic.
    let both = [0, 1, 2, 2, 2, 2, 2, 3, 3];
    let before = [0, 1, 2, 3, 4, 4, 5, 5, 5];
    for (bidirectional, expected) in [(true, both), (false, before)] {
        let (queries, keys) = (9, 9);
        let trace = Trace::new();
        let layer = RelativePositions::new(&trace, "relative", 2, shape, bidirectional, Init::Zeros);
        let program = trace.finish(&[("bias", &layer.forward(queries, keys))]).expect("correct");
        let table: Vec<f64> = (0..16).map(f64::from).collect();
        let bias = evaluate(&program, &[("relative.weight", table)]).remove("bias").expect("the output");
        for (head, query, key) in (0..2).flat_map(|h| (0..81).map(move |at| (h, at / 9, at % 9))) {
            let (distance, after) = (usize::abs_diff(query, key), key > query);
            let bucket = match (bidirectional, after) {
                (true, true) => 4 + expected[distance],
                (false, true) => 0,
                (_, false) => expected[distance],
            };
            let place = (head * queries + query) * keys + key;
            assert_eq!(bias[place], f64::from(2 * bucket + head as i32), "{bidirectional} {query} {key}");
        }
    }
    check_gradients(&[(&[8, 2], random(11, 16, -1.0, 1.0))], |trace, x| {
        let mut layer = RelativePositions::new(trace, "relative", 2, shape, true, Init::Zeros);
        layer.weight = x[0].clone();
        (layer.forward(5, 6).exp() * trace.arange(6, DType::F64)).sum_all()
    });
}

#[test]
fn blocks_differentiate() {
    for norm in [NormPlace::Pre, NormPlace::Post, NormPlace::Branch, NormPlace::Both] {
        // Checked by the input and by a factor on a weight deep inside.
        let inputs: [(&[usize], _); 2] = [(&[1, 3, 6], random(7, 18, -1.0, 1.0)), (&[], vec![1.1])];
        check_gradients(&inputs, |trace, x| {
            let mut block = Block::new(trace, "block", &BlockConfig { norm, ..block() });
            let SelfAttention::Heads(attn) = &mut block.attn else { panic!("heads were asked for") };
            let Network::Dense(mlp) = &mut block.mlp else { panic!("a network for all was asked for") };
            attn.qkv.weight = (attn.qkv.weight.cast(DType::F64)) * &x[1];
            let norms = [&mut block.ln1, &mut block.ln2].into_iter();
            for norm in norms.flat_map(|norms| std::iter::once(&mut norms.norm).chain(&mut norms.after)) {
                let Norm::Layer(norm) = norm else { panic!("layer norms were asked for") };
                (norm.weight, norm.bias) = (norm.weight.cast(DType::F64), norm.bias.cast(DType::F64));
            }
            for weight in [&mut attn.proj.weight, &mut mlp.up.weight, &mut mlp.down.weight] {
                *weight = weight.cast(DType::F64);
            }
            for linear in [&mut attn.qkv, &mut attn.proj, &mut mlp.up, &mut mlp.down] {
                linear.bias = linear.bias.as_ref().map(|bias| bias.cast(DType::F64));
            }
            (block.forward(&x[0]) * trace.arange(6, DType::F64)).sum_all()
        });
    }
}

#[test]
fn attention_with_norms_of_queries_and_keys_and_soft_limits_differentiates() {
    for over in [QkNorm::Head, QkNorm::Position] {
        let qk_norm = QkNormConfig { over, normalization: Normalization::RmsPlusOne, epsilon: 1e-3 };
        let config = AttentionConfig {
            kv_heads: 1,
            scale: Some(2.0),
            softcap: Some(1.5),
            qk_norm: Some(qk_norm),
            ..attention()
        };
        let widths = if over == QkNorm::Head { [3, 3] } else { [6, 3] };
        let inputs: [(&[usize], _); 3] = [
            (&[1, 3, 6], random(7, 18, -1.0, 1.0)),
            (&[widths[0]], random(8, widths[0], -0.5, 0.5)),
            (&[widths[1]], random(9, widths[1], -0.5, 0.5)),
        ];
        check_gradients(&inputs, |trace, x| {
            let mut layer = MultiHeadAttention::new(trace, "attn", &config);
            let norms = layer.qk_norm.as_mut().expect("norms were asked for");
            for (norm, weight) in norms.iter_mut().zip(&x[1..]) {
                let Norm::Rms(norm) = norm else { panic!("RMSNorm was asked for") };
                assert_eq!(norm.weight.shape(), weight.shape());
                norm.weight = weight.clone();
            }
            for linear in [&mut layer.qkv, &mut layer.proj] {
                linear.weight = linear.weight.cast(DType::F64);
                linear.bias = linear.bias.as_ref().map(|bias| bias.cast(DType::F64));
            }
            (layer.forward(&x[0]) * trace.arange(6, DType::F64)).sum_all()
        });
    }
}

#[test]
fn dropout_keeps_its_share_and_draws_a_new_mask_at_each_step() {
    let trace = Trace::training();
    let x = trace.input("x", [100, 200], DType::F32);
    let dropout = Dropout { probability: 0.3 };
    let y = dropout.forward(&x);
    let gradient = y.sum_all().grad(&[&x]).remove(0);
    let program = trace
        .finish(&[("y", &y), ("again", &dropout.forward(&x)), ("gradient", &gradient)])
        .expect("correct");
    let ones = vec![1.0; 20_000];
    let run =
        |step: f64| evaluate(&program, &[("x", ones.clone()), ("seed", vec![3.0]), ("step", vec![step])]);
    let results = run(0.0);
    let kept = results["y"].iter().filter(|y| **y != 0.0).count() as f64 / 20_000.0;
    assert!((kept - 0.7).abs() < 0.01, "{kept}");
    assert!(results["y"].iter().all(|&y| y == 0.0 || (y - 1.0 / 0.7).abs() < 1e-7));
    assert_eq!(results["y"], results["gradient"]);
    assert_ne!(results["y"], results["again"]);
    assert_eq!(results, run(0.0));
    assert_ne!(results["y"], run(1.0)["y"]);
}

#[test]
fn dropped_weights_are_the_same_for_all_rows() {
    let trace = Trace::training();
    let (x, weight) = (trace.input("x", [7, 5], DType::F32), trace.input("w", [3, 5], DType::F32));
    let dropped = DropConnect { probability: 0.4 }.forward(&weight);
    let program = trace.finish(&[("w", &dropped), ("y", &x.linear(&dropped))]).expect("correct");
    let ones = |count| vec![1.0; count];
    let inputs = [("x", ones(35)), ("w", ones(15)), ("seed", vec![3.0]), ("step", vec![1.0])];
    let results = evaluate(&program, &inputs);
    let kept = results["w"].iter().filter(|&&w| w != 0.0).count();
    assert!(kept > 0 && kept < 15 && results["w"].iter().all(|&w| w == 0.0 || (w - 1.0 / 0.6).abs() < 1e-7));
    assert!(results["y"].chunks(3).all(|row| row == &results["y"][..3]));
}

#[test]
fn dropout_does_nothing_when_evaluating() {
    let trace = Trace::new();
    let x = trace.input("x", [2], DType::F32);
    assert_eq!(Dropout { probability: 0.9 }.forward(&x).id(), x.id());
}

#[test]
fn a_wrong_shape_is_reported_at_the_call_of_the_layer_under_its_path() {
    let trace = Trace::new();
    let block = Block::new(&trace, "blocks.0", &block());
    let x = trace.input("x", [2, 4, 7], DType::F32);
    let (line, _) = (line!(), block.attn.forward(&x, None, None, None));
    let error = trace.finish(&[]).expect_err("seven is not six").to_string();
    let expected = "linear(f32[2,4,7], f32[18,6]): the weight takes 6 inputs, the last axis has 7\n  at ";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains(&format!("{}:{line}:", file!())), "{error}");
    assert!(error.ends_with("\n  in blocks.0.attn.qkv"), "{error}");
}

/// Nothing is broadcast where two shapes should be one.
#[test]
fn losses_and_layers_refuse_other_shapes_by_their_own_names() {
    type Mistake = fn(&Trace, &Tensor, &Tensor);
    let mistakes: [(&str, Mistake); 15] = [
        ("mse(f32[8,1], f32[8]): the operands must have one shape", |_, x, y| drop(mse(x, y))),
        ("bce(f32[8,1], f32[8]): the operands", |_, x, y| drop(bce(x, y))),
        ("bce_with_logits(f32[8,1], f32[8]): the operands", |_, x, y| drop(bce_with_logits(x, y))),
        ("pairwise_loss(f32[8,1], f32[8]): the operands", |_, x, y| drop(pairwise_loss(x, y))),
        ("masked_mean(f32[8,1], f32[8]): the operands", |_, x, y| drop(masked_mean(x, y))),
        ("counted_mean(f32[8,1], f32[8]): the operands", |t, x, y| drop(counted_mean(x, y, &t.ones([])))),
        ("value_loss(f32[8,1], f32[8,1], f32[8]): the operands", |_, x, y| drop(value_loss(x, x, y))),
        ("ppo_loss(f32[8,1], f32[8,1], f32[8], f32[8,1]): the operands", |_, x, y| {
            drop(ppo_loss(x, x, y, x, 0.2))
        }),
        ("cross_entropy(f32[8,1], i32[8,1]): takes logits [.., classes] and targets [..]", |t, x, _| {
            drop(cross_entropy(x, &t.input("c", [8, 1], DType::I32)))
        }),
        ("cross_entropy(f32[8,1], f32[8]): target classes are i32, not f32", |_, x, y| {
            drop(cross_entropy(x, y))
        }),
        ("token_losses(f32[], i32[]): takes logits", |t, _, _| {
            drop(token_losses(&t.ones([]), &t.input("c", [], DType::I32)))
        }),
        ("layer_norm(f32[8,1], f32[16]): takes [.., 16]", |t, x, _| {
            drop(LayerNorm::new(t, "norm", 16).forward(x))
        }),
        ("rms_norm(f32[8], f32[16]): takes [.., 16]", |t, _, y| drop(RmsNorm::new(t, "norm", 16).forward(y))),
        ("dropout(f32[8]): the probability 1 is not at least 0 and below 1", |_, _, y| {
            drop(Dropout { probability: 1.0 }.forward(y))
        }),
        ("dropout(f32[8]): the probability NaN", |_, _, y| {
            drop(Dropout { probability: f64::NAN }.forward(y))
        }),
    ];
    for (expected, mistake) in mistakes {
        let trace = Trace::new();
        let (x, y) = (trace.input("x", [8, 1], DType::F32), trace.input("y", [8], DType::F32));
        mistake(&trace, &x, &y);
        let message = trace.error().expect("a mistake").to_string();
        assert!(message.starts_with(expected), "{message}\nis not\n{expected}");
        assert!(message.contains(&format!("at {}:", file!())), "{message}");
    }
}

/// An operation of a layer has the line that calls the layer, those of its parameters included.
#[test]
fn parameters_have_the_line_that_declares_the_layer() {
    let trace = Trace::new();
    let line = line!() + 1;
    let layer = Linear::new(&trace, "linear", 2, 3);
    let program = trace.finish(&[("weight", &layer.weight), ("bias", layer.bias.as_ref().expect("one"))]);
    let text = program.expect("a program").graph.to_string();
    assert_eq!(text.matches(&format!("at {:?}:{line}:", file!())).count(), 2, "{text}");
}
