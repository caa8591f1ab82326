//! The states of parameters that `quantize_weights` keeps in other types than `f32`: floats of 16 bits, or whole numbers with scales.

use super::{Parameter, Tensor};
use crate::HostTensor;
use kernfusion_ir::{DType, TensorType};
use kernfusion_passes::{GROUP, HALF_BYTE_OFFSET, WeightType, scale_of, scaled_groups};

/// The largest of the whole numbers that are kept as bytes.
const LARGEST: f32 = 127.0;

/// The nearest whole number, ties to even, of one between −127 and 127; 0 of NaN. Where `round_ties_even` is a call, this is two additions:
/// beside 1.5 · 2²³ a number has no digits behind the point.
fn nearest(x: f32) -> i8 {
    const WHOLE: f32 = 12_582_912.0;
    ((x + WHOLE) - WHOLE) as i8
}

/// The number of largest magnitude, the first of several. A NaN stays to the end: it makes the scale one, and so whatever the row is used for.
fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(
        0.0f32,
        |largest, &x| {
            if x.abs() <= largest.abs() || largest.is_nan() { largest } else { x }
        },
    )
}

/// The scale of a row of bytes. A row of zeros has any.
fn scale_of_row(row: &[f32]) -> f32 {
    let largest = largest(row).abs();
    if largest == 0.0 { 1.0 } else { largest / LARGEST }
}

/// The scale of a group of half bytes: the number of largest magnitude is −8 times it, which is one more than it could be 7 times. As
/// `bf16`, at most half a unit in the last place from that.
fn scale_of_group(group: &[f32]) -> f32 {
    let scale = DType::BF16.round(f64::from(-largest(group) / HALF_BYTE_OFFSET as f32)) as f32;
    if scale == 0.0 { 1.0 } else { scale }
}

impl Parameter {
    /// The states that these values of the parameter are kept in, by name: one of its own, and `name.scale` if it has scales. Each scale of a row
    /// is its largest magnitude over 127; that of a group is its number of largest magnitude over −8.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub fn kept(&self, values: Vec<f32>) -> Vec<(String, HostTensor)> {
        let (numbers, scales) = match self.kept_as {
            WeightType::Int8 => self.rows_of_bytes(&values),
            WeightType::Int4 => self.groups_of_half_bytes(&values),
            float => {
                let values = HostTensor::new(self.shape.clone(), values);
                let dtype = float.float().expect("all others are floats");
                return vec![(self.name.clone(), values.to_dtype(dtype))];
            }
        };
        vec![(self.name.clone(), numbers), (scale_of(&self.name), scales)]
    }

    fn rows_of_bytes(&self, values: &[f32]) -> (HostTensor, HostTensor) {
        let (rows, width) = self.shape.split_at(self.shape.len() - 1);
        let (mut numbers, mut scales) = (Vec::with_capacity(values.len()), vec![]);
        for row in values.chunks_exact(width[0].max(1)) {
            let scale = scale_of_row(row);
            numbers.extend(row.iter().map(|x| nearest(x / scale)));
            scales.push(scale);
        }
        (HostTensor::new(self.shape.clone(), numbers), HostTensor::new(rows, scales))
    }

    fn groups_of_half_bytes(&self, values: &[f32]) -> (HostTensor, HostTensor) {
        let (mut bytes, mut scales) = (Vec::with_capacity(values.len() / 2), vec![]);
        for group in values.chunks_exact(GROUP) {
            let scale = scale_of_group(group);
            let number = |x: f32| nearest((x / scale).clamp(-8.0, 7.0)) as i32 + HALF_BYTE_OFFSET;
            let (lower, upper) = group.split_at(GROUP / 2);
            let byte = |(&lower, &upper): (&f32, &f32)| (number(lower) | number(upper) << 4) as u8 as i8;
            bytes.extend(lower.iter().zip(upper).map(byte));
            scales.push(scale);
        }
        let (ty, of_scales) = self.states();
        let of_scales = of_scales.expect("groups have scales");
        let scales = HostTensor::new(of_scales.shape, scales).to_dtype(of_scales.dtype);
        (HostTensor::new(ty.shape, bytes), scales)
    }

    /// The types of the state that the parameter is kept in, and of its scales, if it has some.
    pub fn states(&self) -> (TensorType, Option<TensorType>) {
        self.kept_as.states(&self.shape)
    }

    /// The name of the state that the parameter is kept in besides its own.
    pub fn companion(&self) -> Option<String> {
        self.states().1.map(|_| scale_of(&self.name))
    }
}

impl Tensor {
    /// Half bytes `[.., groups, 16]`, of `i8`, times the scales of their groups `[.., groups]`: a matrix `[.., 32 · groups]`. Byte j of a group has number j,
    /// plus 8, in its lower half and number 16 + j in its upper one. [Products](Tensor::linear) read such a matrix as it is kept, if it is a state with
    /// scales of `bf16` or `f32`.
    #[track_caller]
    pub fn half_bytes(&self, scales: &Tensor) -> Tensor {
        let matrix = self.trace().attempt("half_bytes", [self, scales], |b, [bytes, scales]| {
            let (of_bytes, of_scales) = (b.ty(bytes), b.ty(scales));
            if of_bytes.dtype != DType::I8 || of_bytes.shape != [&of_scales.shape[..], &[GROUP / 2]].concat() {
                return Err(format!(
                    "takes bytes of i8 with an axis of {} behind those of scales, not {of_bytes} and {of_scales}",
                    GROUP / 2
                )
                .into());
            }
            Ok(scaled_groups(b, bytes, scales)?)
        });
        matrix.unwrap_or_else(|| {
            let mut shape = scales.shape();
            shape.iter_mut().last().into_iter().for_each(|groups| *groups *= GROUP);
            self.trace().placeholder(&TensorType::new(DType::F32, shape))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{Target, compile};
    use crate::init::Init;
    use crate::nn::{Linear, Lora};
    use crate::optim::{Optimizer, TrainStep};
    use crate::testing::evaluate;
    use crate::trace::Trace;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_are_rounded_to_the_nearest_with_ties_to_even() {
        let halves = (-254..=254).map(|twice| twice as f32 / 2.0);
        let beside = halves.clone().flat_map(|x| [x.next_up(), x.next_down()]);
        for x in halves.chain(beside).chain([0.0, -0.0, f32::NAN]) {
            assert_eq!(nearest(x), x.round_ties_even() as i8, "{x}");
        }
    }

    /// Adapters that are trained on frozen matrices of bytes.
    #[test]
    fn what_is_trained_stays_f32() {
        let trace = Trace::training();
        trace.store_matrices(WeightType::Int8);
        trace.adapt(&Lora { rank: 2, alpha: 1.0, dropout: 0.0, targets: vec!["up".into()] });
        let x = trace.input("x", [4, 3], DType::F32);
        let loss = Linear::builder(3, 5).init(Init::Ones).build(&trace, "up").forward(&x).square().mean_all();
        let step = TrainStep::new(&loss, &Optimizer::sgd(0.1), None).unwrap();
        let kept = |parameter: &Parameter| (parameter.name.clone(), parameter.kept_as, parameter.trained);
        let kept: Vec<_> = step.program.parameters.iter().map(kept).collect();
        let expected = [
            ("up.weight", WeightType::Int8, false),
            ("up.lora_a", WeightType::F32, true),
            ("up.lora_b", WeightType::F32, true),
            ("up.bias", WeightType::F32, false),
        ];
        assert_eq!(kept, expected.map(|(name, dtype, trained)| (name.to_string(), dtype, trained)));
        let mut program =
            compile(&step.program.graph, &step.program.initial_states(1).unwrap(), &Target::cpu()).unwrap();
        let x = HostTensor::new([4, 3], (0..12).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
        let losses: Vec<_> = (0..20)
            .map(|at| {
                let scalars = step.scalars(at, 0.1, 0);
                let given = scalars.iter().map(|(name, x)| (*name, x)).chain([("x", &x)]);
                program.run(&given.collect::<Vec<_>>()).unwrap().scalar("loss").unwrap()
            })
            .collect();
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
    }

    /// Of two rows of two groups: the first has its largest number below zero, the second above, the third nothing but zeros, the last a NaN.
    #[test]
    fn groups_are_scales_times_half_bytes() {
        let trace = Trace::new();
        trace.store_matrices(WeightType::Int4);
        let matrix = trace.parameter("m", [2, 64], Init::Zeros);
        let narrow = trace.parameter("n", [2, 33], Init::Zeros);
        let program = trace.finish(&[("matrix", &matrix), ("narrow", &narrow)]).unwrap();
        let types: Vec<_> = program.parameters.iter().map(|parameter| parameter.kept_as).collect();
        assert_eq!(types, [WeightType::Int4, WeightType::Int8]);
        let group = |sign: f32| (0..32).map(move |i| sign * ((i * 7 % 32) as f32 - 19.0) / 11.0);
        let mut values: Vec<_> = group(1.0).chain(group(-1.0)).chain([0.0; 64]).collect();
        values[100] = f32::NAN;
        let kept: BTreeMap<_, _> = program.parameters[0].kept(values.clone()).into_iter().collect();
        assert_eq!(kept.keys().map(String::as_str).collect::<Vec<_>>(), ["m", "m.scale"]);
        assert_eq!(
            (kept["m"].ty().to_string(), kept["m.scale"].ty().to_string()),
            ("i8[2,2,16]".into(), "bf16[2,2]".into())
        );
        let scales = kept["m.scale"].to_f64();
        assert!(
            scales[3].is_nan() && scales[2] == 1.0 && scales[0] > 0.0 && scales[1] == -scales[0],
            "{scales:?}"
        );
        let narrow = program.parameters[1].kept(vec![1.0; 66]);
        let states = kept.iter().map(|(name, tensor)| (name.as_str(), tensor.to_f64()));
        let states = states.chain(narrow.iter().map(|(name, tensor)| (name.as_str(), tensor.to_f64())));
        let read = &evaluate(&program, &states.collect::<Vec<_>>())["matrix"];
        let mut largest = 0.0f64;
        for (at, (read, value)) in read.iter().zip(&values[..96]).enumerate() {
            largest = largest.max((read - f64::from(*value)).abs() / scales[at / 32].abs());
        }
        // The numbers on the other side of zero end at 7, where none is so large here.
        assert!(largest <= 0.51, "{largest}");
        assert!(read[96..].iter().all(|x| x.is_nan()), "{read:?}");
    }

    /// Few rows and many, in products with and without an epilogue and with an embedding, are what the unpacked matrix gives, and no matrix is
    /// unpacked in memory.
    #[test]
    fn products_read_half_bytes_as_they_are_kept() {
        for rows in [1, 5, 40] {
            let trace = Trace::new();
            trace.store_matrices(WeightType::Int4);
            let table = trace.parameter("table", [50, 64], Init::Normal { std: 1.0 });
            let ids = trace.input("ids", [rows], DType::I32);
            let hidden = table
                .gather(0, &ids)
                .linear(&trace.parameter("up", [96, 64], Init::Normal { std: 1.0 }))
                .gelu();
            let logits =
                hidden.linear(&trace.parameter("down", [64, 96], Init::Normal { std: 1.0 })).linear(&table);
            let program = trace.finish(&[("logits", &logits)]).unwrap();
            let states = program.initial_states(3).unwrap();
            let mut compiled = program.compile(&states, &Target::cpu()).unwrap();
            assert_eq!(compiled.report().kernels, 4, "{}", compiled.kernels());
            let given: Vec<i32> = (0..rows as i32).map(|i| i * 7 % 50).collect();
            let ids = HostTensor::new([rows], given);
            let got = compiled.run(&[("ids", &ids)]).unwrap().get("logits").unwrap().to_f64();
            let mut inputs: Vec<_> =
                program.initial_parameters(3).map(|(name, tensor)| (name, tensor.to_f64())).collect();
            inputs.push(("ids".into(), ids.to_f64()));
            let inputs: Vec<_> =
                inputs.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
            let expected = &evaluate(&program, &inputs)["logits"];
            let size = expected.iter().fold(0.0f64, |size, x| size.max(x.abs()));
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 1e-5 * size, "{rows} rows: {got}, not {expected}");
            }
        }
    }

    /// Half bytes of another's file, whose scales are `f32`: no matrix is unpacked in memory.
    #[test]
    fn half_bytes_may_have_scales_of_f32() {
        for (rows, kept) in [1, 5, 40].into_iter().flat_map(|rows| [(rows, DType::F32), (rows, DType::BF16)])
        {
            let trace = Trace::new();
            let (bytes, scales) = (trace.state("w", [96, 3, 16], DType::I8), trace.state("s", [96, 3], kept));
            let y = trace.input("x", [rows, 96], DType::F32).linear(&bytes.half_bytes(&scales));
            let program = trace.finish(&[("y", &y)]).unwrap();
            let random =
                |at: usize, count: usize| (0..count).map(move |i| ((i * 7919 + at) as f64 * 0.37).sin());
            let values = [
                ("x", TensorType::new(DType::F32, [rows, 96]), random(1, rows * 96).collect::<Vec<_>>()),
                (
                    "w",
                    TensorType::new(DType::I8, [96, 3, 16]),
                    random(2, 4608).map(|x| (127.0 * x).round()).collect(),
                ),
                ("s", TensorType::new(kept, [96, 3]), random(3, 288).map(|x| kept.round(0.1 * x)).collect()),
            ];
            let tensors = values.clone().map(|(name, ty, values)| (name, HostTensor::from_f64(&ty, &values)));
            let states = program.initial_states(1).unwrap();
            tensors[1..].iter().for_each(|(name, tensor)| states.set(name, tensor).unwrap());
            let mut compiled = program.compile(&states, &Target::cpu()).unwrap();
            assert_eq!(compiled.report().kernels, 1, "{}", compiled.kernels());
            let got = compiled.run(&[("x", &tensors[0].1)]).unwrap().get("y").unwrap().to_f64();
            let given = tensors.each_ref().map(|(name, tensor)| (*name, tensor.to_f64()));
            let expected = &evaluate(&program, &given)["y"];
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 1e-5, "{rows} rows, {kept}: {got}, not {expected}");
            }
        }
    }

    #[test]
    fn half_bytes_fit_their_scales() {
        let trace = Trace::new();
        let (bytes, scales) = (trace.state("w", [4, 3, 15], DType::I8), trace.state("s", [4, 3], DType::F32));
        trace.finish(&[("y", &bytes.half_bytes(&scales))]).unwrap_err();
        assert!(trace.error().unwrap().to_string().contains(
            "takes bytes of i8 with an axis of 16 behind those of scales, not i8[4,3,15] and f32[4,3]"
        ));
    }

    #[test]
    fn rows_are_scales_times_bytes() {
        let trace = Trace::new();
        trace.store_matrices(WeightType::Int8);
        let matrix = trace.parameter("m", [3, 4], Init::Zeros);
        let vector = trace.parameter("v", [4], Init::Ones);
        let program = trace.finish(&[("matrix", &matrix), ("vector", &vector)]).unwrap();
        let values = [0.0, 0.0, 0.0, 0.0, 1.0, -2.54, 0.02, 0.5, 1e-20, 3e-20, -1e-21, 2e-20];
        let kept: BTreeMap<_, _> =
            program.parameters[0].kept(values.map(|x| x as f32).to_vec()).into_iter().collect();
        assert_eq!(kept.keys().map(String::as_str).collect::<Vec<_>>(), ["m", "m.scale"]);
        assert_eq!(kept["m"].ty().to_string(), "i8[3,4]");
        assert_eq!(kept["m"].to_f64()[4..8], [50.0, -127.0, 1.0, 25.0]);
        let inputs: Vec<_> = kept.iter().map(|(name, tensor)| (name.as_str(), tensor.to_f64())).collect();
        let read = evaluate(&program, &inputs);
        for (row, (read, values)) in read["matrix"].chunks(4).zip(values.chunks(4)).enumerate() {
            let scale = kept["m.scale"].to_f64()[row];
            for (read, value) in read.iter().zip(values) {
                assert!((read - value).abs() <= 0.5001 * scale, "row {row}: {read} for {value}");
            }
        }
        // No byte is a NaN, and so the scale says it.
        let broken: BTreeMap<_, _> = program.parameters[0]
            .kept(vec![f32::NAN, 1.0, 2.0, 3.0, 1.0, f32::NAN, 2.0, 3.0, 1.0, 2.0, 3.0, f32::INFINITY])
            .into_iter()
            .collect();
        let scales = broken["m.scale"].to_f64();
        assert!(scales[0].is_nan() && scales[1].is_nan() && scales[2].is_infinite(), "{scales:?}");
        // Vectors are few, and stay as they are.
        assert_eq!(read["vector"], [1.0; 4]);
    }
}
