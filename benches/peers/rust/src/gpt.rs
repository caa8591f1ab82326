//! What both libraries are given: the shapes of the presets, parameters by name, windows of tokens.

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Normal};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) const EPSILON: f64 = 1e-5;

/// A model's shape; the fields are those of `cli/src/experiment/pytorch/model.py`.
#[derive(Clone, Deserialize)]
pub(crate) struct Shape {
    pub(crate) vocabulary: usize,
    pub(crate) context: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) width: usize,
    pub(crate) qkv_bias: bool,
    pub(crate) tied: bool,
    /// "erf" or "tanh".
    pub(crate) gelu: String,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Preset {
    Tiny,
    Thesis,
    Gpt2Small,
}

impl Preset {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Preset::Tiny => "tiny",
            Preset::Thesis => "thesis",
            Preset::Gpt2Small => "gpt2-small",
        }
    }

    /// The shape, and how many windows are a batch.
    pub(crate) fn shape(self) -> (Shape, usize) {
        let plain = |context, layers, heads, width| Shape {
            vocabulary: 65,
            context,
            layers,
            heads,
            width,
            qkv_bias: false,
            tied: false,
            gelu: "erf".into(),
        };
        match self {
            Preset::Tiny => (plain(64, 4, 4, 128), 12),
            Preset::Thesis => (plain(256, 6, 6, 384), 64),
            Preset::Gpt2Small => {
                let gpt2 = Shape {
                    vocabulary: 50257,
                    qkv_bias: true,
                    tied: true,
                    gelu: "tanh".into(),
                    ..plain(1024, 12, 12, 768)
                };
                (gpt2, 1)
            }
        }
    }
}

/// A parameter's shape and its elements in C order.
#[derive(Clone)]
pub(crate) struct Parameter {
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Vec<f32>,
}

/// Parameters by their names in PyTorch.
pub(crate) type Parameters = BTreeMap<String, Parameter>;

/// A library that gives the mean cross-entropy of `y` after `x`, in nats, and learns from it if it was made for training.
pub(crate) trait Peer {
    fn step(&mut self, windows: &Windows) -> Result<f32>;
}

/// A library that reads a text with a cache of keys and values, and gives the logits of what comes next.
pub(crate) trait Reader {
    fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>>;

    /// Forgets what was read.
    fn restart(&mut self) -> Result<()>;
}

/// `batch` windows of as many tokens each, and the token after each.
pub(crate) struct Windows {
    pub(crate) batch: usize,
    pub(crate) x: Vec<u32>,
    pub(crate) y: Vec<u32>,
}

impl Windows {
    pub(crate) fn drawn(random: &mut Tokens, batch: usize, context: usize) -> Windows {
        let rows: Vec<Vec<u32>> = (0..batch).map(|_| random.take(context + 1)).collect();
        Windows {
            batch,
            x: rows.iter().flat_map(|row| &row[..context]).copied().collect(),
            y: rows.iter().flat_map(|row| &row[1..]).copied().collect(),
        }
    }
}

/// Random tokens of a vocabulary.
pub(crate) struct Tokens {
    random: SmallRng,
    vocabulary: u32,
}

impl Tokens {
    pub(crate) fn new(vocabulary: usize) -> Tokens {
        Tokens { random: SmallRng::seed_from_u64(1), vocabulary: vocabulary as u32 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.random.random_range(0..self.vocabulary)).collect()
    }
}

/// Parameters as GPT-2's are drawn: N(0, 0.02), norms 1 and biases 0.
pub(crate) fn random_parameters(shape: &Shape) -> Parameters {
    let mut random = SmallRng::seed_from_u64(2);
    let normal = Normal::new(0.0f32, 0.02).expect("a positive deviation");
    let draw = |(name, shape): (String, Vec<usize>)| {
        let count = shape.iter().product();
        let elements = match shape.len() {
            2 => normal.sample_iter(&mut random).take(count).collect(),
            _ if name.ends_with("weight") => vec![1.0; count],
            _ => vec![0.0; count],
        };
        (name, Parameter { shape, elements })
    };
    shapes(shape).into_iter().map(draw).collect()
}

fn shapes(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let width = shape.width;
    let mut shapes = vec![
        ("wte.weight".into(), vec![shape.vocabulary, width]),
        ("wpe.weight".into(), vec![shape.context, width]),
    ];
    let norm = |name: String, shapes: &mut Vec<(String, Vec<usize>)>| {
        shapes.extend(["weight", "bias"].map(|part| (format!("{name}.{part}"), vec![width])));
    };
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        norm(name("ln1"), &mut shapes);
        norm(name("ln2"), &mut shapes);
        let linears = [
            ("attn.qkv", 3 * width, width, shape.qkv_bias),
            ("attn.proj", width, width, true),
            ("mlp.up", 4 * width, width, true),
            ("mlp.down", width, 4 * width, true),
        ];
        for (part, rows, columns, biased) in linears {
            shapes.push((name(part) + ".weight", vec![rows, columns]));
            if biased {
                shapes.push((name(part) + ".bias", vec![rows]));
            }
        }
    }
    norm("ln_f".into(), &mut shapes);
    if !shape.tied {
        shapes.push(("head.weight".into(), vec![shape.vocabulary, width]));
    }
    shapes
}

/// A fixture of `benches/peers/fixture.py`: parameters, tokens, and the losses that PyTorch had.
pub(crate) struct Replay {
    pub(crate) shape: Shape,
    pub(crate) parameters: Parameters,
    pub(crate) losses: Vec<f32>,
    tokens: Vec<u32>,
    batch: usize,
}

impl Replay {
    pub(crate) fn read(path: &Path) -> Result<Replay> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes)
            .with_context(|| format!("{} is no safetensors file", path.display()))?;
        let text = |key: &str| {
            header
                .metadata()
                .as_ref()
                .and_then(|metadata| metadata.get(key))
                .ok_or(anyhow!("the fixture does not say its {key}"))
        };
        let file = SafeTensors::deserialize(&bytes)?;
        let words = |name: &str| -> Result<Vec<[u8; 4]>> {
            Ok(file
                .tensor(name)?
                .data()
                .chunks_exact(4)
                .map(|word| word.try_into().expect("four bytes"))
                .collect())
        };
        let mut parameters = Parameters::new();
        for (name, view) in file.tensors() {
            if let Some(parameter) = name.strip_prefix("param.").filter(|_| view.dtype() == Dtype::F32) {
                let elements = words(&name)?.into_iter().map(f32::from_le_bytes).collect();
                parameters.insert(parameter.into(), Parameter { shape: view.shape().to_vec(), elements });
            }
        }
        Ok(Replay {
            shape: serde_json::from_str(text("config")?)?,
            parameters,
            losses: words("losses")?.into_iter().map(f32::from_le_bytes).collect(),
            tokens: words("tokens")?.into_iter().map(u32::from_le_bytes).collect(),
            batch: text("batch")?.parse()?,
        })
    }

    /// The windows of a step, as the fixture lays them out.
    pub(crate) fn windows(&self, step: usize) -> Windows {
        let size = self.batch * self.shape.context;
        let from = |start: usize| self.tokens[start..start + size].to_vec();
        Windows { batch: self.batch, x: from(step * size), y: from(step * size + 1) }
    }
}
