//! Buckets: sums that ranks exchange together, as soon as a body has computed them.
//!
//! ```text
//! body   … dW₃ … db₃ … dW₂ … db₂ … dW₁ …            tail   all_reduce dW₁, all_reduce db₂, …
//!             └────────┬────────┘
//!             begins when its last sum is there, in one message to each other rank
//! ```
//!
//! A message costs the same time however short it is, and every rank sends one to every other for each exchange. So neighbours in the order
//! in which backward computes them share theirs.

use super::{BufferRole, Form, Plan};
use std::ops::RangeInclusive;

/// Bytes of a bucket: enough to outweigh the latency of a message, but few enough that the last bucket, which is complete only at the end of backward, is
/// a small part of all. A larger sum has a bucket of its own.
const BYTES: RangeInclusive<usize> = 64 << 10..=16 << 20;

/// About how many buckets there are, as far as these bytes allow.
const BUCKETS: usize = 12;

/// About how many there are at most: each is a message to every other rank.
const MOST_BUCKETS: usize = 32;

/// Collectives of a tail whose sums are exchanged together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The kernel of the body after which all its sums are there; the number of kernels if they are there at its end.
    pub after: usize,
    /// The collectives, kernels of the tail in order.
    pub kernels: Vec<usize>,
}

impl Bucket {
    /// All buckets of a body and a tail, in the order in which they begin; `sums` are the states in which the body adds up.
    pub fn all(body: &Plan, tail: &Plan, sums: &[String]) -> Vec<Bucket> {
        let mut ready: Vec<_> =
            exchanges(tail, sums).map(|(kernel, sum, bytes)| (body.last_touch(sum), kernel, bytes)).collect();
        ready.sort_unstable();
        let all: usize = ready.iter().map(|(.., bytes)| bytes).sum();
        let most = (all / BUCKETS).clamp(*BYTES.start(), *BYTES.end()).max(all / MOST_BUCKETS);
        let mut buckets: Vec<Bucket> = vec![];
        // The bucket that is being filled, and by how much it is.
        let mut open: Option<(usize, usize)> = None;
        for (after, kernel, bytes) in ready {
            match &mut open {
                Some((at, filled)) if *filled + bytes <= most => {
                    *filled += bytes;
                    buckets[*at].after = after;
                    buckets[*at].kernels.push(kernel);
                }
                _ => {
                    if bytes <= most {
                        open = Some((buckets.len(), bytes));
                    }
                    buckets.push(Bucket { after, kernels: vec![kernel] });
                }
            }
        }
        buckets.sort_by_key(|bucket| bucket.after);
        buckets
    }
}

/// The collectives of a tail that sum a state before anything else touches it, with its name and bytes.
fn exchanges<'a>(tail: &'a Plan, sums: &'a [String]) -> impl Iterator<Item = (usize, &'a str, usize)> {
    let kernels = tail.graph.kernels.iter().enumerate();
    kernels.filter_map(|(at, kernel)| {
        let Form::Collective(call) = &kernel.form else { return None };
        call.scratch?;
        let buffer = tail.graph.buffer(tail.memory_of(call.from));
        let is_sum = buffer.role == BufferRole::State && sums.contains(&buffer.name);
        let is_first = || tail.touches(&buffer.name).next() == Some(at);
        (is_sum && is_first()).then(|| (at, buffer.name.as_str(), buffer.ty.bytes()))
    })
}
