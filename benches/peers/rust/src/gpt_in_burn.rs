//! The GPT in Burn, on its CPU back end `flex`. (Its other one, `cpu`, downloads LLVM while it is built.)

use crate::gpt::{EPSILON, Parameters, Peer, Reader, Shape, Windows};
use anyhow::{Result, anyhow};
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData};

#[derive(Module, Debug)]
struct Block {
    ln1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    ln2: LayerNorm,
    up: Linear,
    gelu: Gelu,
    down: Linear,
}

#[derive(Module, Debug)]
struct Gpt {
    wte: Embedding,
    wpe: Param<Tensor<2>>,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
    /// None if the head is the embedding.
    head: Option<Linear>,
    heads: usize,
}

/// Keys and values of a layer, `[batch, heads, length, size]`.
type Cache = Option<[Tensor<4>; 2]>;

impl Gpt {
    fn new(shape: &Shape, parameters: &Parameters, device: &Device) -> Result<Gpt> {
        let width = shape.width;
        let get = |name: &str| parameters.get(name).ok_or(anyhow!("there is no parameter {name}"));
        let vector = |name: String| -> Result<Param<Tensor<1>>> {
            let data = TensorData::new(get(&name)?.elements.clone(), [get(&name)?.elements.len()]);
            Ok(Param::from_tensor(Tensor::from_data(data, device)))
        };
        let matrix = |name: &str| -> Result<Tensor<2>> {
            let parameter = get(name)?;
            Ok(Tensor::from_data(
                TensorData::new(parameter.elements.clone(), [parameter.shape[0], parameter.shape[1]]),
                device,
            ))
        };
        let linear = |name: String| -> Result<Linear> {
            // Burn has a weight as [in, out].
            let weight = matrix(&format!("{name}.weight"))?.transpose();
            let [inputs, outputs] = weight.dims();
            let rows = Tensor::from_data(weight.into_data(), device);
            let mut linear = LinearConfig::new(inputs, outputs).with_bias(false).init(device);
            linear.weight = Param::from_tensor(rows);
            linear.bias = parameters
                .contains_key(&format!("{name}.bias"))
                .then(|| vector(format!("{name}.bias")))
                .transpose()?;
            Ok(linear)
        };
        let norm = |name: String| -> Result<LayerNorm> {
            let mut norm = LayerNormConfig::new(width).with_epsilon(EPSILON).init(device);
            norm.gamma = vector(format!("{name}.weight"))?;
            norm.beta = Some(vector(format!("{name}.bias"))?);
            Ok(norm)
        };
        let block = |layer: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            Ok(Block {
                ln1: norm(name("ln1"))?,
                qkv: linear(name("attn.qkv"))?,
                proj: linear(name("attn.proj"))?,
                ln2: norm(name("ln2"))?,
                up: linear(name("mlp.up"))?,
                gelu: if shape.gelu == "tanh" { Gelu::new_approximate() } else { Gelu::new() },
                down: linear(name("mlp.down"))?,
            })
        };
        let mut wte = EmbeddingConfig::new(shape.vocabulary, width).init(device);
        wte.weight = Param::from_tensor(matrix("wte.weight")?);
        Ok(Gpt {
            wte,
            wpe: Param::from_tensor(matrix("wpe.weight")?),
            blocks: (0..shape.layers).map(block).collect::<Result<_>>()?,
            ln_f: norm("ln_f".into())?,
            head: (!shape.tied).then(|| linear("head".into())).transpose()?,
            heads: shape.heads,
        })
    }

    /// Features of tokens `[batch, length]` behind `before` others: `[batch, length, width]`.
    fn forward(&self, tokens: Tensor<2, Int>, before: usize, mut caches: Option<&mut [Cache]>) -> Tensor<3> {
        let length = tokens.dims()[1];
        let positions = self.wpe.val().narrow(0, before, length).unsqueeze();
        let mut x = self.wte.forward(tokens) + positions;
        for (layer, block) in self.blocks.iter().enumerate() {
            let cache = caches.as_mut().map(|caches| &mut caches[layer]);
            x = x.clone() + self.attention(block, block.ln1.forward(x), cache);
            let inner = block.gelu.forward(block.up.forward(block.ln2.forward(x.clone())));
            x = x + block.down.forward(inner);
        }
        self.ln_f.forward(x)
    }

    fn attention(&self, block: &Block, x: Tensor<3>, cache: Option<&mut Cache>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let qkv =
            block.qkv.forward(x).reshape([batch, length, 3 * self.heads, width / self.heads]).swap_dims(1, 2);
        let part = |number: usize| qkv.clone().narrow(1, number * self.heads, self.heads);
        let (q, mut k, mut v) = (part(0), part(1), part(2));
        if let Some(cache) = cache {
            if let Some([keys, values]) = cache.take() {
                (k, v) = (Tensor::cat(vec![keys, k], 2), Tensor::cat(vec![values, v], 2));
            }
            *cache = Some([k.clone(), v.clone()]);
        }
        // A token alone may look at everything.
        let options = AttentionModuleOptions { is_causal: length > 1, ..AttentionModuleOptions::default() };
        let mixed = attention(q, k, v, None, None, options);
        block.proj.forward(mixed.swap_dims(1, 2).reshape([batch, length, width]))
    }

    fn logits(&self, features: Tensor<3>) -> Tensor<3> {
        match &self.head {
            Some(head) => head.forward(features),
            None => features.matmul(self.wte.weight.val().transpose().unsqueeze()),
        }
    }
}

fn tokens(given: &[u32], batch: usize, device: &Device) -> Tensor<2, Int> {
    let given: Vec<i32> = given.iter().map(|&token| token as i32).collect();
    let length = given.len() / batch;
    Tensor::from_data(TensorData::new(given, [batch, length]), device)
}

pub(crate) struct Trained {
    /// Taken by a step, which gives it back with other parameters.
    gpt: Option<Gpt>,
    optimizer: Option<ModuleOptimizer>,
    device: Device,
}

impl Trained {
    pub(crate) fn new(shape: &Shape, parameters: &Parameters, training: bool) -> Result<Trained> {
        let device = if training { Device::flex().autodiff() } else { Device::flex() };
        let settings = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01);
        Ok(Trained {
            gpt: Some(Gpt::new(shape, parameters, &device)?),
            optimizer: training.then(|| settings.init()),
            device,
        })
    }
}

impl Peer for Trained {
    fn step(&mut self, windows: &Windows) -> Result<f32> {
        let gpt = self.gpt.take().ok_or(anyhow!("a step before failed"))?;
        let x = tokens(&windows.x, windows.batch, &self.device);
        let y = tokens(&windows.y, 1, &self.device).flatten(0, 1);
        let logits = gpt.logits(gpt.forward(x, 0, None));
        let loss = CrossEntropyLossConfig::new().init(&self.device).forward(logits.flatten(0, 1), y);
        self.gpt = Some(match &mut self.optimizer {
            Some(optimizer) => {
                let gradients = GradientsParams::from_grads(loss.backward(), &gpt);
                optimizer.step(1e-3, gpt, gradients)
            }
            None => gpt,
        });
        Ok(loss.into_scalar::<f32>())
    }
}

pub(crate) struct Cached {
    gpt: Gpt,
    caches: Vec<Cache>,
    read: usize,
    device: Device,
}

impl Cached {
    pub(crate) fn new(shape: &Shape, parameters: &Parameters) -> Result<Cached> {
        let (device, mut shape, mut parameters) = (Device::flex(), shape.clone(), parameters.clone());
        if shape.tied {
            // A head of its own, as Burn has matrices: it would transpose the embedding for every token.
            parameters.insert("head.weight".into(), parameters["wte.weight"].clone());
            shape.tied = false;
        }
        Ok(Cached {
            gpt: Gpt::new(&shape, &parameters, &device)?,
            caches: vec![None; shape.layers],
            read: 0,
            device,
        })
    }
}

impl Reader for Cached {
    fn read(&mut self, given: &[u32]) -> Result<Vec<f32>> {
        let features = self.gpt.forward(tokens(given, 1, &self.device), self.read, Some(&mut self.caches));
        self.read += given.len();
        let last = features.narrow(1, given.len() - 1, 1);
        self.gpt.logits(last).into_data().try_to_vec().map_err(|error| anyhow!("logits: {error:?}"))
    }

    fn restart(&mut self) -> Result<()> {
        self.caches.fill(None);
        self.read = 0;
        Ok(())
    }
}
