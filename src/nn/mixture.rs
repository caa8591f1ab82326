//! A mixture of experts: every token is worked on by a few of many feed-forward networks (Shazeer et al., "Outrageously
//! large neural networks", 2017; in a decoder as Mixtral has it, Jiang et al., 2024).
//!
//! Only chosen experts are computed. Pairs of token and expert are sorted by expert, each expert's rows begin at a multiple
//! of a block, and a product of a block reads the matrix of its expert in place:
//!
//! ```text
//! token     0     1     2            rows     expert 0: 0 2 – –    expert 1: 1 0 1 2
//! experts   0,1   1,1   0,1    →     blocks   0         0 …        1         1 …
//! ```
//!
//! Shapes stay fixed, since blocks can be wasted for at most one part for each expert; nothing is dropped. Where there are no more pairs than
//! experts, as when a text is continued, a pair is a block: sorted, they might take as many, each of which reads a matrix.
//!
//! Tokens are sorted in groups ([`Trace::set_groups`]), so that microbatches and ranks, each of which has some groups, compute the same; and
//! so is the share of tokens balanced that each expert works on, as in GShard (Lepikhin et al., 2021, section 2.2). Without microbatches there is
//! one group.

use super::Linear;
use crate::init::Init;
use crate::trace::{Tensor, Trace};
use kernfusion_ir::DType;
use std::sync::Arc;

/// The largest and smallest number of rows that are multiplied together.
const BLOCKS: [usize; 2] = [8, 64];

/// The shape of a mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MixtureConfig {
    /// d, the width outside.
    pub width: usize,
    /// The width inside each expert.
    pub hidden: usize,
    /// How many experts there are.
    pub experts: usize,
    /// How many of them work on a token.
    pub active: usize,
    /// Standard deviation of the noise that is added to the router's logits in training, so that other experts than the best
    /// ones are tried.
    pub noise: f64,
    /// Weight of the balancing loss.
    pub balance: f64,
    /// Standard deviation of the first weights.
    pub std: f64,
    /// That of `down`, whose results are added to the residual stream.
    pub residual_std: f64,
}

/// Σ over the chosen experts of wₑ · downₑ(swish(gateₑ x) ⊙ upₑ x), where w are the largest entries of softmax(router x),
/// divided by their sum.
pub struct Mixture {
    path: Arc<str>,
    config: MixtureConfig,
    /// `[experts, width]`.
    pub router: Linear,
    /// `[experts, 2·hidden, width]`: rows of each expert's gate, then of its up projection.
    pub gate_up: Tensor,
    /// `[experts, width, hidden]`.
    pub down: Tensor,
}

/// Which rows belong to which tokens and experts. Rows of a group follow each other.
struct Route {
    /// The row of each pair, `[groups, pairs]`.
    rows: Tensor,
    /// The token of each row, `[groups, rows]`; any of its group for rows that are empty.
    tokens: Tensor,
    /// The expert of each block of rows, `[groups, blocks]`.
    experts: Tensor,
    block: usize,
}

impl Mixture {
    /// Declares `name.router.weight`, `name.experts.gate_up` and `name.experts.down`.
    #[track_caller]
    pub fn new(trace: &Trace, name: &str, config: &MixtureConfig) -> Self {
        let _scope = trace.scope(name);
        let MixtureConfig { width, hidden, experts, .. } = *config;
        let inward = Init::Normal { std: config.std };
        let router = Linear::builder(width, experts).bias(false).init(inward).build(trace, "router");
        let gate_up = trace.parameter("experts.gate_up", [experts, 2 * hidden, width], inward);
        let outward = Init::Normal { std: config.residual_std };
        let down = trace.parameter("experts.down", [experts, width, hidden], outward);
        Mixture { path: trace.path(), config: config.clone(), router, gate_up, down }
    }

    /// `[.., width]` to the same shape. In training the balancing loss is a [penalty](Trace::penalize) of the trace.
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let trace = x.trace();
        let _scope = trace.at(self.path.clone());
        let MixtureConfig { width, experts, active, noise, balance, .. } = self.config;
        let shape = x.shape();
        let count: usize = shape[..shape.len().max(1) - 1].iter().product();
        let tokens = x.reshape([count, width]);
        let mut logits = self.router.forward(&tokens);
        if trace.is_training() && noise > 0.0 {
            logits = logits + trace.random_normal([count, experts]) * noise;
        }
        let likely = logits.softmax(-1);
        let (weights, chosen) = likely.top_k(active);
        let weights = &weights / weights.sum_keep(&[-1]);
        let groups = trace.groups(shape.first().copied().unwrap_or(1));
        let grouped = |x: &Tensor| x.reshape([groups, count / groups.max(1), x.dim(-1)]);
        if trace.is_training() && balance > 0.0 {
            trace.penalize(&(balancing_loss(&grouped(&likely), &grouped(&chosen)) * balance));
        }
        let picked = if count * active <= experts {
            let rows = tokens.unsqueeze(1).broadcast_to([count, active, width]);
            self.work(&rows.reshape([count * active, 1, width]), &chosen)
        } else {
            let route = route(&grouped(&chosen), experts);
            let blocks = route.experts.shape().iter().product();
            let rows = tokens.gather(0, &route.tokens).reshape([blocks, route.block, width]);
            self.work(&rows, &route.experts).gather(0, &route.rows)
        };
        (picked.reshape([count, active, width]) * weights.unsqueeze(-1)).sum(&[1]).reshape(shape)
    }

    /// The experts' networks on `[blocks, rows, width]`, where each block has an expert, as `[blocks · rows, width]`.
    #[track_caller]
    fn work(&self, rows: &Tensor, experts: &Tensor) -> Tensor {
        let (width, hidden) = (self.config.width, self.config.hidden);
        let (blocks, block) = (rows.dim(0), rows.dim(1));
        let experts = experts.reshape([blocks]);
        let [gate_up, down] = [&self.gate_up, &self.down].map(|table| table.gather(0, &experts));
        let inner = rows.matmul_transposed(&gate_up);
        let (gate, up) = (inner.narrow(-1, 0, hidden), inner.narrow(-1, hidden, hidden));
        (gate.swish() * up).matmul_transposed(&down).reshape([blocks * block, width])
    }
}

impl MixtureConfig {
    /// The number of trained numbers.
    pub fn parameters(&self) -> usize {
        self.experts * self.width * (1 + 3 * self.hidden)
    }
}

/// The mean over groups of experts · Σₑ fₑ·Pₑ, where fₑ is the share of a group's tokens that expert e works on and Pₑ its mean probability
/// (Fedus, Zoph, Shazeer, "Switch Transformers", 2022, equation 4; for several experts a token as in Mixtral). It is `active` where all
/// experts have the same share. `likely` is `[.., tokens, experts]`, `chosen` `[.., tokens, active]`.
#[track_caller]
pub fn balancing_loss(likely: &Tensor, chosen: &Tensor) -> Tensor {
    let experts = likely.dim(-1);
    let share = chosen.one_hot(experts, DType::F32).sum(&[-2]).mean(&[-2]);
    (share * likely.mean(&[-2])).sum(&[-1]).mean_all() * experts as f64
}

/// Sorts the pairs of `[groups, tokens, active]` by expert.
#[track_caller]
fn route(chosen: &Tensor, experts: usize) -> Route {
    let trace = chosen.trace();
    let (groups, tokens, active) = (chosen.dim(0), chosen.dim(1), chosen.dim(2));
    let pairs = tokens * active;
    let block = (pairs / experts / 4).max(1).next_power_of_two().clamp(BLOCKS[0], BLOCKS[1]);
    // Counts are exact in f32, which products sum up.
    let mask = chosen.reshape([groups, pairs]).class_mask(experts);
    let ones = mask.cast(DType::F32);
    let before = ones.running_sum(1) - &ones;
    let blocks = ((ones.sum(&[1]) + (block as f64 - 1.0)) * (1.0 / block as f64)).floor();
    let ends = blocks.running_sum(1);
    let starts = (&ends - &blocks) * block as f64;
    let place = mask.select(before + starts.unsqueeze(1), 0.0).sum(&[2]).cast(DType::I32);
    // Each expert wastes less than a block.
    let most = (pairs + experts * (block - 1)) / block;
    let rows = in_groups(&place, most * block);
    let numbered = trace.iota([groups, tokens, active], 1, DType::I32).reshape([groups, pairs]);
    let found = numbered.scatter_add(0, groups * most * block, &rows).reshape([groups, most * block]);
    let number = trace.iota([groups, most, experts], 1, DType::F32);
    let experts_before =
        ends.unsqueeze(1).broadcast_to([groups, most, experts]).le(&number).cast(DType::I32).sum(&[2]);
    Route {
        rows,
        tokens: in_groups(&found, tokens),
        experts: experts_before.minimum(experts as f64 - 1.0),
        block,
    }
}

/// Places `[groups, ..]` inside of groups as places of all groups, of which each has `extent`. That each stays inside of its group has to be
/// seen for [microbatches](Trace::set_groups).
#[track_caller]
fn in_groups(places: &Tensor, extent: usize) -> Tensor {
    let start = places.trace().iota(places.shape(), 0, DType::I32) * extent as f64;
    places.maximum(0).minimum(extent as f64 - 1.0) + start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Target;
    use crate::testing::{assert_close, evaluate, random};
    use kernfusion_ir::kernel::{Buffer, BufferRole};
    use kernfusion_passes::WeightType;

    const CONFIG: MixtureConfig = MixtureConfig {
        width: 6,
        hidden: 5,
        experts: 4,
        active: 2,
        noise: 0.0,
        balance: 0.0,
        std: 0.5,
        residual_std: 0.5,
    };

    fn inputs(x: &[f64], config: &MixtureConfig) -> Vec<(String, Vec<f64>)> {
        let MixtureConfig { width, hidden, experts, .. } = *config;
        let weights = [
            ("router.weight", experts * width),
            ("experts.gate_up", experts * 2 * hidden * width),
            ("experts.down", experts * width * hidden),
        ];
        let numbered = weights.into_iter().zip(1..);
        let weights =
            numbered.map(|((name, count), seed)| (format!("moe.{name}"), random(seed, count, -1.0, 1.0)));
        weights.chain([("x".to_string(), x.to_vec())]).collect()
    }

    /// The results for a batch of `tokens`, and the gradients of their sum of squares with respect to `x` and the experts' matrices.
    fn results(tokens: usize, x: &[f64]) -> [Vec<f64>; 4] {
        let trace = Trace::new();
        let given = trace.input("x", [tokens, CONFIG.width], DType::F32);
        let mixture = Mixture::new(&trace, "moe", &CONFIG);
        let y = mixture.forward(&given);
        let gradients = (&y * &y).sum_all().grad(&[&given, &mixture.gate_up, &mixture.down]);
        let names = ["y", "x'", "gate_up'", "down'"];
        let outputs: Vec<_> = names.into_iter().zip([&y].into_iter().chain(&gradients)).collect();
        let program = trace.finish(&outputs).unwrap();
        let inputs = inputs(x, &CONFIG);
        let inputs: Vec<_> = inputs.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
        let mut results = evaluate(&program, &inputs);
        names.map(|name| results.remove(name).unwrap())
    }

    /// Of one and of two tokens each pair is a block; seven have more pairs than there are experts, and are sorted.
    #[test]
    fn pairs_that_are_not_sorted_give_the_same() {
        let (width, x) = (CONFIG.width, random(9, 7 * CONFIG.width, -1.0, 1.0));
        let [y, of_x, of_gate_up, of_down] = results(7, &x);
        let mut sums = [vec![0.0; of_gate_up.len()], vec![0.0; of_down.len()]];
        let mut first = 0;
        for tokens in [1, 2, 1, 2, 1] {
            let part = first * width..(first + tokens) * width;
            let [own, own_x, own_gate_up, own_down] = results(tokens, &x[part.clone()]);
            assert_close(&own, &y[part.clone()], 1e-6);
            assert_close(&own_x, &of_x[part], 1e-6);
            for (sum, own) in sums.iter_mut().zip([own_gate_up, own_down]) {
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
            first += tokens;
        }
        assert_close(&sums[0], &of_gate_up, 1e-6);
        assert_close(&sums[1], &of_down, 1e-6);
    }

    /// Whatever matrices are kept as, products of one token read those of its experts where they lie.
    #[test]
    fn experts_are_read_in_place() {
        let config = MixtureConfig { width: 64, hidden: 32, ..CONFIG };
        for kept in WeightType::ALL {
            let trace = Trace::new();
            trace.store_matrices(kept);
            let x = trace.input("x", [1, config.width], DType::F32);
            let y = Mixture::new(&trace, "moe", &config).forward(&x);
            let program = trace.finish(&[("y", &y)]).unwrap();
            let states = program.initial_states(1).unwrap();
            let compiled = program.compile(&states, &Target::cpu()).unwrap();
            let is_matrix = |buffer: &&Buffer| {
                buffer.role == BufferRole::Temporary && buffer.ty.elements() >= config.hidden * config.width
            };
            let largest: Vec<_> =
                compiled.kernels().buffers.iter().filter(is_matrix).map(|buffer| &buffer.name).collect();
            assert!(largest.is_empty(), "{kept}: {largest:?}");
        }
    }
}
