//! The GPT in candle: its own layers and kernels where it has them, with the functions that it can differentiate in training.

use crate::Weights;
use crate::gpt::{EPSILON, Parameter, Parameters, Peer, Reader, Shape, Windows};
use anyhow::{Result, anyhow};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{D, Device, Module, Tensor, Var};
use candle_nn::attention::{AttnMask, flash_attn};
use candle_nn::kv_cache::KvCache;
use candle_nn::{AdamW, LayerNorm, Linear, Optimizer, ParamsAdamW, loss, ops};
use std::collections::BTreeMap;

/// A product with a matrix of `f32`, or of numbers of 8 or 4 bits and a scale for every 32.
enum Matrix {
    Full(Linear),
    Narrow(QMatMul, Option<Tensor>),
}

impl Matrix {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Matrix::Full(linear) => linear.forward(x),
            Matrix::Narrow(matrix, None) => matrix.forward(x),
            Matrix::Narrow(matrix, Some(bias)) => matrix.forward(x)?.broadcast_add(bias),
        }
    }
}

struct Block {
    ln1: LayerNorm,
    qkv: Matrix,
    proj: Matrix,
    ln2: LayerNorm,
    up: Matrix,
    down: Matrix,
}

struct Gpt {
    shape: Shape,
    wte: Tensor,
    wpe: Tensor,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
    head: Matrix,
    training: bool,
}

impl Gpt {
    fn new(shape: &Shape, tensors: &BTreeMap<String, Tensor>, training: bool, weights: Weights) -> Result<Gpt> {
        let get = |name: &str| tensors.get(name).cloned().ok_or(anyhow!("there is no parameter {name}"));
        let matrix = |weight: Tensor, bias: Option<Tensor>| -> Result<Matrix> {
            let narrow = match weights {
                Weights::F32 => return Ok(Matrix::Full(Linear::new(weight, bias))),
                Weights::Int8 => GgmlDType::Q8_0,
                Weights::Int4 => GgmlDType::Q4_0,
            };
            Ok(Matrix::Narrow(QMatMul::from_qtensor(QTensor::quantize(&weight, narrow)?)?, bias))
        };
        let linear = |name: String| {
            matrix(get(&format!("{name}.weight"))?, tensors.get(&format!("{name}.bias")).cloned())
        };
        let norm = |name: String| -> Result<LayerNorm> {
            Ok(LayerNorm::new(get(&format!("{name}.weight"))?, get(&format!("{name}.bias"))?, EPSILON))
        };
        let block = |layer: usize| -> Result<Block> {
            let name = |part: &str| format!("blocks.{layer}.{part}");
            Ok(Block {
                ln1: norm(name("ln1"))?,
                qkv: linear(name("attn.qkv"))?,
                proj: linear(name("attn.proj"))?,
                ln2: norm(name("ln2"))?,
                up: linear(name("mlp.up"))?,
                down: linear(name("mlp.down"))?,
            })
        };
        Ok(Gpt {
            shape: shape.clone(),
            wte: get("wte.weight")?,
            wpe: get("wpe.weight")?,
            blocks: (0..shape.layers).map(block).collect::<Result<_>>()?,
            ln_f: norm("ln_f".into())?,
            head: matrix(get(if shape.tied { "wte.weight" } else { "head.weight" })?, None)?,
            training,
        })
    }

    /// candle's fused norm has no gradient.
    fn norm(&self, norm: &LayerNorm, x: &Tensor) -> candle_core::Result<Tensor> {
        match self.training {
            true => ops::layer_norm_slow(
                x,
                norm.weight(),
                norm.bias().expect("norms have a bias"),
                EPSILON as f32,
            ),
            false => norm.forward(x),
        }
    }

    /// Features of tokens `[batch, length]`: `[batch, length, width]`.
    fn forward(&self, tokens: &Tensor, mut caches: Option<&mut [KvCache]>) -> candle_core::Result<Tensor> {
        let (batch, length) = tokens.dims2()?;
        let before = caches.as_ref().map_or(0, |caches| caches[0].k_cache().current_seq_len());
        let embedded =
            self.wte.embedding(&tokens.flatten_all()?)?.reshape((batch, length, self.shape.width))?;
        let mut x = embedded.broadcast_add(&self.wpe.narrow(0, before, length)?)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let cache = caches.as_mut().map(|caches| &mut caches[layer]);
            x = (&x + self.attention(block, &self.norm(&block.ln1, &x)?, before, cache)?)?;
            let inner = block.up.forward(&self.norm(&block.ln2, &x)?)?;
            let inner = if self.shape.gelu == "tanh" { inner.gelu()? } else { inner.gelu_erf()? };
            x = (x + block.down.forward(&inner)?)?;
        }
        self.norm(&self.ln_f, &x)
    }

    fn attention(
        &self,
        block: &Block,
        x: &Tensor,
        before: usize,
        cache: Option<&mut KvCache>,
    ) -> candle_core::Result<Tensor> {
        let (batch, length, width) = x.dims3()?;
        let size = width / self.shape.heads;
        let qkv = block.qkv.forward(x)?;
        let part = |number: usize| {
            qkv.narrow(D::Minus1, number * width, width)?.reshape((batch, length, self.shape.heads, size))
        };
        let (q, mut k, mut v) = (part(0)?, part(1)?, part(2)?);
        if let Some(cache) = cache {
            (k, v) = cache.append(&k.contiguous()?, &v.contiguous()?)?;
        }
        let scale = 1.0 / (size as f64).sqrt();
        let mixed = match self.training {
            true => self.attention_with_gradients(&q, &k, &v, scale)?,
            false => flash_attn::<f32>(
                &q.contiguous()?,
                &k,
                &v,
                scale as f32,
                AttnMask::Causal { kv_offset: before },
                None,
                None,
            )?,
        };
        block.proj.forward(&mixed.transpose(1, 2)?.reshape((batch, length, width))?)
    }

    /// Attention written out, since that for CPUs has no gradient; `q`, `k`, `v` `[batch, length, heads, size]`, the result with heads before length.
    fn attention_with_gradients(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        scale: f64,
    ) -> candle_core::Result<Tensor> {
        let length = q.dim(1)?;
        let heads_first = |x: &Tensor| x.transpose(1, 2)?.contiguous();
        let scores = (heads_first(q)?.matmul(&heads_first(k)?.t()?)? * scale)?;
        let future: Vec<f32> = (0..length * length)
            .map(|place| if place % length > place / length { f32::NEG_INFINITY } else { 0.0 })
            .collect();
        let scores = scores.broadcast_add(&Tensor::from_vec(future, (length, length), &Device::Cpu)?)?;
        ops::softmax(&scores, D::Minus1)?.matmul(&heads_first(v)?)
    }
}

fn tensors(parameters: &Parameters) -> Result<BTreeMap<String, Tensor>> {
    let tensor = |(name, parameter): (&String, &Parameter)| -> Result<(String, Tensor)> {
        let tensor = Tensor::from_slice(&parameter.elements, parameter.shape.as_slice(), &Device::Cpu)?;
        Ok((name.clone(), tensor))
    };
    parameters.iter().map(tensor).collect()
}

pub(crate) struct Trained {
    gpt: Gpt,
    optimizer: Option<AdamW>,
}

impl Trained {
    pub(crate) fn new(shape: &Shape, parameters: &Parameters, training: bool) -> Result<Trained> {
        let variable = |(name, tensor)| -> Result<(String, Var)> { Ok((name, Var::from_tensor(&tensor)?)) };
        let variables: BTreeMap<String, Var> =
            tensors(parameters)?.into_iter().map(variable).collect::<Result<_>>()?;
        let seen = |variable: &Var| {
            if training { variable.as_tensor().clone() } else { variable.as_detached_tensor() }
        };
        let tensors = variables.iter().map(|(name, variable)| (name.clone(), seen(variable))).collect();
        let gpt = Gpt::new(shape, &tensors, training, Weights::F32)?;
        let settings = ParamsAdamW { lr: 1e-3, ..ParamsAdamW::default() };
        let optimizer =
            training.then(|| AdamW::new(variables.into_values().collect(), settings)).transpose()?;
        Ok(Trained { gpt, optimizer })
    }
}

impl Peer for Trained {
    fn step(&mut self, windows: &Windows) -> Result<f32> {
        let shape = (windows.batch, windows.x.len() / windows.batch);
        let x = Tensor::from_slice(&windows.x, shape, &Device::Cpu)?;
        let y = Tensor::from_slice(&windows.y, windows.y.len(), &Device::Cpu)?;
        let logits = self.gpt.head.forward(&self.gpt.forward(&x, None)?)?;
        let loss = loss::cross_entropy(&logits.flatten(0, 1)?, &y)?;
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.backward_step(&loss)?;
        }
        Ok(loss.to_scalar()?)
    }
}

pub(crate) struct Cached {
    gpt: Gpt,
    caches: Vec<KvCache>,
}

impl Cached {
    pub(crate) fn new(shape: &Shape, parameters: &Parameters, weights: Weights) -> Result<Cached> {
        let caches = (0..shape.layers).map(|_| KvCache::new(1, shape.context)).collect();
        Ok(Cached { gpt: Gpt::new(shape, &tensors(parameters)?, false, weights)?, caches })
    }
}

impl Reader for Cached {
    fn read(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let x = Tensor::from_slice(tokens, (1, tokens.len()), &Device::Cpu)?;
        let features = self.gpt.forward(&x, Some(&mut self.caches))?;
        let last = features.narrow(1, tokens.len() - 1, 1)?.contiguous()?;
        Ok(self.gpt.head.forward(&last)?.flatten_all()?.to_vec1()?)
    }

    fn restart(&mut self) -> Result<()> {
        self.caches.iter_mut().for_each(KvCache::reset);
        Ok(())
    }
}
