//! One block of a Transformer: attention and a feed-forward network, each with a norm and a residual connection, and in
//! a decoder that follows an encoder attention to it in between.

use super::{
    Activation, AttentionConfig, AttentionMask, CrossAttention, Dropout, FeedForward, FeedForwardConfig,
    KvCache, LatentAttention, LatentAttentionConfig, Mixture, MixtureConfig, MultiHeadAttention, Norm,
    Normalization,
};
use crate::trace::{Tensor, Trace};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a block normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlace {
    /// x + branch(norm x), as in GPT-2.
    #[default]
    Pre,
    /// norm(x + branch x), as in the first Transformer.
    Post,
    /// x + norm(branch x), as in OLMo 2.
    Branch,
    /// x + norm(branch(norm x)), as in Gemma 2.
    Both,
}

impl NormPlace {
    /// How many norms each branch has.
    pub(crate) fn norms(self) -> usize {
        if self == NormPlace::Both { 2 } else { 1 }
    }
}

/// The shape of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// d.
    pub width: usize,
    /// Dropout probability of branches.
    pub dropout: f64,
    /// Where norms stand.
    pub norm: NormPlace,
    /// Which norms.
    pub normalization: Normalization,
    /// ε of the norms.
    pub epsilon: f64,
    /// What results of branches are multiplied by before they are added, 1 in most models.
    pub residual_scale: f64,
    /// Attention of the input to itself.
    pub attention: SelfAttentionConfig,
    /// Attention to an encoder, if there is one.
    pub cross: Option<AttentionConfig>,
    /// The feed-forward network.
    pub feed_forward: FeedForwardConfig,
    /// A mixture of experts in its place, if there is one.
    pub experts: Option<MixtureConfig>,
}

impl BlockConfig {
    /// A block as in the first Transformer: biases everywhere, layer norms after the branches, ReLU, no dropout.
    pub fn classic(width: usize, heads: usize, hidden: usize, mask: AttentionMask) -> Self {
        let attention = AttentionConfig { mask, qkv_bias: true, ..AttentionConfig::causal(width, heads) };
        let AttentionConfig { std, residual_std, .. } = attention;
        BlockConfig {
            width,
            dropout: 0.0,
            norm: NormPlace::Post,
            normalization: Normalization::Layer,
            epsilon: 1e-5,
            residual_scale: 1.0,
            attention: SelfAttentionConfig::Heads(attention),
            cross: None,
            feed_forward: FeedForwardConfig {
                width,
                hidden,
                activation: Activation::Relu,
                gated: false,
                bias: true,
                std,
                residual_std,
            },
            experts: None,
        }
    }

    /// With this activation in the feed-forward network.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.feed_forward.activation = activation;
        self
    }

    /// With attention to an encoder, of as many heads as the block has for its input; there are none for latent attention.
    pub fn with_cross_attention(mut self) -> Self {
        if let SelfAttentionConfig::Heads(heads) = &self.attention {
            self.cross = Some(heads.clone());
        }
        self
    }

    /// With these standard deviations of the first weights of attention and feed-forward network; the second one is that of
    /// the matrices whose results are added to the residual stream.
    pub fn with_first_weights(mut self, std: f64, residual_std: f64) -> Self {
        let place = match &mut self.attention {
            SelfAttentionConfig::Heads(heads) => (&mut heads.std, &mut heads.residual_std),
            SelfAttentionConfig::Latent(latent) => (&mut latent.std, &mut latent.residual_std),
        };
        (*place.0, *place.1) = (std, residual_std);
        self.cross.iter_mut().for_each(|cross| (cross.std, cross.residual_std) = (std, residual_std));
        (self.feed_forward.std, self.feed_forward.residual_std) = (std, residual_std);
        self.experts.iter_mut().for_each(|experts| (experts.std, experts.residual_std) = (std, residual_std));
        self
    }

    /// With this dropout probability of attention weights and branches.
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.dropout = dropout;
        match &mut self.attention {
            SelfAttentionConfig::Heads(heads) => heads.dropout = dropout,
            SelfAttentionConfig::Latent(latent) => latent.dropout = dropout,
        }
        self.cross.iter_mut().for_each(|cross| cross.dropout = dropout);
        self
    }
}

/// The shape of either kind of attention of an input to itself.
#[derive(Debug, Clone, PartialEq)]
pub enum SelfAttentionConfig {
    /// [`MultiHeadAttention`]
    Heads(AttentionConfig),
    /// [`LatentAttention`]
    Latent(LatentAttentionConfig),
}

/// Attention of an input to itself, of either kind.
pub enum SelfAttention {
    /// Keys and values for each head or group of heads.
    Heads(Box<MultiHeadAttention>),
    /// Keys and values from a narrow vector.
    Latent(Box<LatentAttention>),
}

impl SelfAttention {
    #[track_caller]
    fn new(trace: &Trace, name: &str, config: &SelfAttentionConfig) -> Self {
        match config {
            SelfAttentionConfig::Heads(config) => {
                SelfAttention::Heads(Box::new(MultiHeadAttention::new(trace, name, config)))
            }
            SelfAttentionConfig::Latent(config) => {
                SelfAttention::Latent(Box::new(LatentAttention::new(trace, name, config)))
            }
        }
    }

    /// `[batch, length, width]` to the same shape; see [`MultiHeadAttention::forward_with`] for `real` and `bias`, which latent
    /// attention does not take, and `past`.
    #[track_caller]
    pub fn forward(
        &self,
        x: &Tensor,
        key_padding_mask: Option<&Tensor>,
        bias: Option<&Tensor>,
        cache: Option<&KvCache>,
    ) -> Tensor {
        match self {
            SelfAttention::Heads(attention) => attention.forward_with(x, key_padding_mask, bias, cache),
            SelfAttention::Latent(attention) => {
                let plain = key_padding_mask.is_none() && bias.is_none();
                x.expect("latent attention", |_| {
                    (!plain).then(|| "knows no padded keys and no biases".into())
                });
                attention.forward_after(x, cache)
            }
        }
    }
}

/// The network of a block that works on every position alone.
pub enum Network {
    /// One for all tokens.
    Dense(Box<FeedForward>),
    /// Several, of which each token has a few.
    Experts(Box<Mixture>),
}

impl Network {
    /// `[.., width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self {
            Network::Dense(network) => network.forward(x),
            Network::Experts(mixture) => mixture.forward(x),
        }
    }
}

/// How a block adds a branch to its input.
struct Residual {
    place: NormPlace,
    dropout: Dropout,
    scale: f64,
}

/// The norms of a branch.
pub struct BranchNorms {
    /// That of its place, before the branch where there are two.
    pub norm: Norm,
    /// That after the branch, of [`NormPlace::Both`].
    pub after: Option<Norm>,
}

/// A block.
pub struct Block {
    path: Arc<str>,
    residual: Residual,
    /// The norms of the attention branch.
    pub ln1: BranchNorms,
    /// Attention.
    pub attn: SelfAttention,
    /// The norms of the branch that looks at an encoder, and that branch.
    pub cross: Option<(BranchNorms, CrossAttention)>,
    /// The norms of the feed-forward branch.
    pub ln2: BranchNorms,
    /// The feed-forward network.
    pub mlp: Network,
}

/// What a block sees beside its input.
#[derive(Clone, Copy, Default)]
pub struct BlockInputs<'a> {
    /// `bool[batch, length]`: which positions of the input are no padding.
    pub key_padding_mask: Option<&'a Tensor>,
    /// `[heads, length, length]`, added to the scores of attention of the input to itself.
    pub bias: Option<&'a Tensor>,
    /// The encoder's result `[batch, source length, width]`.
    pub memory: Option<&'a Tensor>,
    /// `bool[batch, source length]`: which positions of the encoder's result are no padding.
    pub memory_padding_mask: Option<&'a Tensor>,
    /// What was read before, if the input is a part of a text.
    pub cache: Option<&'a KvCache>,
}

impl Block {
    /// Declares `name.ln1`, `name.attn`, with an encoder `name.ln_cross` and `name.cross`, `name.ln2` and `name.mlp`; where branches
    /// have two norms, the second ones are `name.ln1_after` and so on.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &BlockConfig) -> Self {
        let _scope = trace.scope(name);
        let norm = |name: &str| Norm::new(trace, name, config.width, config.normalization, config.epsilon);
        let norms = |name: &str| BranchNorms {
            norm: norm(name),
            after: (config.norm == NormPlace::Both).then(|| norm(&format!("{name}_after"))),
        };
        let dropout = Dropout { probability: config.dropout };
        Block {
            path: trace.path(),
            residual: Residual { place: config.norm, dropout, scale: config.residual_scale },
            ln1: norms("ln1"),
            attn: SelfAttention::new(trace, "attn", &config.attention),
            cross: config
                .cross
                .as_ref()
                .map(|config| (norms("ln_cross"), CrossAttention::new(trace, "cross", config))),
            ln2: norms("ln2"),
            mlp: match &config.experts {
                Some(experts) => Network::Experts(Box::new(Mixture::new(trace, "mlp", experts))),
                None => Network::Dense(Box::new(FeedForward::new(trace, "mlp", &config.feed_forward))),
            },
        }
    }

    /// `[batch, length, width]` to the same shape.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.forward_with(x, BlockInputs::default())
    }

    /// As [`Block::forward`], with padding or an encoder.
    #[track_caller]
    pub fn forward_with(&self, x: &Tensor, around: BlockInputs<'_>) -> Tensor {
        let _scope = x.trace().at(self.path.clone());
        let taken = self.residual.before(&self.ln1, x);
        let branch = self.attn.forward(&taken, around.key_padding_mask, around.bias, around.cache);
        let mut x = self.residual.after(&self.ln1, x, branch);
        if let (Some((norms, cross)), Some(memory)) = (&self.cross, around.memory) {
            let branch = cross.forward(&self.residual.before(norms, &x), memory, around.memory_padding_mask);
            x = self.residual.after(norms, &x, branch);
        }
        let branch = self.mlp.forward(&self.residual.before(&self.ln2, &x));
        self.residual.after(&self.ln2, &x, branch)
    }
}

impl Residual {
    /// What a branch takes.
    #[track_caller]
    fn before(&self, norms: &BranchNorms, x: &Tensor) -> Tensor {
        match self.place {
            NormPlace::Pre | NormPlace::Both => norms.norm.forward(x),
            NormPlace::Post | NormPlace::Branch => x.clone(),
        }
    }

    /// x and the result of its branch, normalised where the place says.
    #[track_caller]
    fn after(&self, norms: &BranchNorms, x: &Tensor, mut branch: Tensor) -> Tensor {
        match (self.place, &norms.after) {
            (NormPlace::Branch, _) => branch = norms.norm.forward(&branch),
            (_, Some(after)) => branch = after.forward(&branch),
            _ => {}
        }
        if self.scale != 1.0 {
            branch = branch * self.scale;
        }
        let sum = x + self.dropout.forward(&branch);
        if self.place == NormPlace::Post { norms.norm.forward(&sum) } else { sum }
    }
}
