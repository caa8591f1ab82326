//! How parameters are laid out in published checkpoints: one row of a table for each module, read both ways.
//!
//! ```text
//! ours                        theirs
//! blocks.{}.ln1               transformer.h.{}.ln_1                                    as it is
//! blocks.{}.attn.qkv          transformer.h.{}.attn.c_attn                             transposed
//! blocks.{}.attn.qkv          model.layers.{}.self_attn.q_proj, k_proj, v_proj         one below the other
//! blocks.{}.mlp.experts.down  model.layers.{}.block_sparse_moe.experts.{e}.w2          one for each expert, stacked
//! ```
//!
//! The model's own parameters choose the rows, so what a model does not have (biases, a head of its own) needs no rows to be left
//! out, and a parameter without a row is one that the layout cannot express.

/// A module of Kernfusion's and where its parameters are in a published checkpoint.
pub(super) struct Row {
    /// Its path; `{}` stands for the number of a block.
    ours: &'static str,
    /// The paths of its parts, in order of rows; `{e}` stands for the number of an expert.
    theirs: &'static [&'static str],
    /// Whether matrices are kept as [inputs, outputs].
    transposed: bool,
}

/// A module that is kept as it is, or in several parts, one below the other.
pub(super) const fn rows(ours: &'static str, theirs: &'static [&'static str]) -> Row {
    Row { ours, theirs, transposed: false }
}

/// A module whose matrix is kept as [inputs, outputs].
pub(super) const fn transposed(ours: &'static str, theirs: &'static [&'static str]) -> Row {
    Row { ours, theirs, transposed: true }
}

/// Heads of queries, and of keys and values, by which a projection to all three is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub(super) queries: usize,
    pub(super) shared: usize,
}

/// A parameter of Kernfusion's, and the tensors of a published checkpoint that it is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parameter {
    /// Its name.
    pub(super) name: String,
    /// Its shape.
    pub(super) shape: Vec<usize>,
    /// The tensors, each a consecutive part of its numbers.
    pub(super) parts: Vec<StoredTensor>,
    transposed: bool,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredTensor {
    /// Its name.
    pub(super) name: String,
    /// Its shape in the checkpoint.
    pub(super) shape: Vec<usize>,
}

impl StoredTensor {
    /// How many numbers it has.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Parameter {
    /// The parameter `name` by the first row of all tables that fits; none if no row does.
    pub(super) fn find(tables: &[&[Row]], name: &str, shape: &[usize], heads: Heads) -> Option<Self> {
        let (module, kind) = match name.rsplit_once('.') {
            Some((module, kind @ ("weight" | "bias"))) => (module, kind),
            // Stacked matrices have no kind of their own.
            _ => (name, "weight"),
        };
        let row_of = |row: &Row| Some((matched(row.ours, module)?, row.theirs, row.transposed));
        let (block, theirs, transposed) = tables.iter().copied().flatten().find_map(row_of)?;
        let transposed = transposed && shape.len() == 2;
        let names = theirs.iter().map(|path| format!("{}.{kind}", path.replacen("{}", &block, 1)));
        let names: Vec<_> = names.collect();
        let parts = match theirs[0].contains("{e}") {
            true => stacked(&names, shape),
            false if transposed => {
                vec![StoredTensor { name: names[0].clone(), shape: vec![shape[1], shape[0]] }]
            }
            false => cut(&names, shape, heads),
        };
        Some(Parameter { name: name.into(), shape: shape.into(), parts, transposed })
    }

    /// The parameter's numbers from those of its parts, one after another.
    pub(super) fn assemble(&self, numbers: Vec<f32>) -> Vec<f32> {
        match self.transposed {
            true => transpose(&numbers, self.shape[1], self.shape[0]),
            false => numbers,
        }
    }

    /// The numbers of all parts, one after another, from the parameter's.
    pub(super) fn take_apart(&self, numbers: Vec<f32>) -> Vec<f32> {
        match self.transposed {
            true => transpose(&numbers, self.shape[0], self.shape[1]),
            false => numbers,
        }
    }
}

/// The number that stands for `{}` in a path, or nothing for a path without one; none if the path is another one.
fn matched(pattern: &str, path: &str) -> Option<String> {
    let Some((before, after)) = pattern.split_once("{}") else {
        return (pattern == path).then(String::new);
    };
    let number = path.strip_prefix(before)?.strip_suffix(after)?;
    (!number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())).then(|| number.into())
}

/// `[experts, rows, ..]` as one tensor per name.
fn stacked(names: &[String], shape: &[usize]) -> Vec<StoredTensor> {
    let rows = shape[1] / names.len();
    let shape_of_one = [&[rows], &shape[2..]].concat();
    let of_expert = |expert: usize| {
        let part = |name: &String| StoredTensor {
            name: name.replacen("{e}", &expert.to_string(), 1),
            shape: shape_of_one.clone(),
        };
        names.iter().map(part).collect::<Vec<_>>()
    };
    (0..shape[0]).flat_map(of_expert).collect()
}

/// Rows in equal shares, or those of three in shares of queries, keys and values.
fn cut(names: &[String], shape: &[usize], heads: Heads) -> Vec<StoredTensor> {
    let shares = match names.len() {
        3 => vec![heads.queries, heads.shared, heads.shared],
        count => vec![1; count],
    };
    let whole: usize = shares.iter().sum();
    let part = |(name, share): (&String, &usize)| {
        let rows = shape[0] / whole * share;
        StoredTensor { name: name.clone(), shape: [&[rows], &shape[1..]].concat() }
    };
    names.iter().zip(&shares).map(part).collect()
}

/// The numbers of a matrix `[rows, columns]` as those of `[columns, rows]`.
fn transpose(numbers: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    // Tiles, so that neither side is read or written a cache line for each number.
    const TILE: usize = 32;
    let mut turned = vec![0.0; numbers.len()];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..(top + TILE).min(rows) {
                for column in left..(left + TILE).min(columns) {
                    turned[column * rows + row] = numbers[row * columns + column];
                }
            }
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: [Row; 4] = [
        rows("ln", &["norm"]),
        transposed("blocks.{}.up", &["h.{}.c_fc"]),
        rows("blocks.{}.qkv", &["h.{}.q", "h.{}.k", "h.{}.v"]),
        rows("blocks.{}.experts.gate_up", &["h.{}.experts.{e}.w1", "h.{}.experts.{e}.w3"]),
    ];

    fn find(name: &str, shape: &[usize]) -> Option<Parameter> {
        Parameter::find(&[&TABLE], name, shape, Heads { queries: 4, shared: 1 })
    }

    fn parts(name: &str, shape: &[usize]) -> Vec<(String, Vec<usize>)> {
        let parts = find(name, shape).unwrap().parts.into_iter();
        parts.map(|StoredTensor { name, shape }| (name, shape)).collect()
    }

    #[test]
    fn rows_name_the_parts_and_their_shapes() {
        assert_eq!(parts("ln.weight", &[5]), [("norm.weight".into(), vec![5])]);
        assert_eq!(parts("blocks.12.up.weight", &[2, 3]), [("h.12.c_fc.weight".into(), vec![3, 2])]);
        assert_eq!(parts("blocks.12.up.bias", &[2]), [("h.12.c_fc.bias".into(), vec![2])]);
        let qkv =
            [("h.0.q.bias".into(), vec![8]), ("h.0.k.bias".into(), vec![2]), ("h.0.v.bias".into(), vec![2])];
        assert_eq!(parts("blocks.0.qkv.bias", &[12]), qkv);
        let experts: Vec<_> = parts("blocks.1.experts.gate_up", &[2, 6, 4]);
        let names: Vec<_> = experts.iter().map(|(name, _)| name.as_str()).collect();
        let expected = ["0.w1", "0.w3", "1.w1", "1.w3"].map(|end| format!("h.1.experts.{end}.weight"));
        assert_eq!(names, expected);
        assert!(experts.iter().all(|(_, shape)| *shape == [3, 4]));
        for unknown in
            ["ln_f.weight", "blocks.x.up.weight", "blocks..up.weight", "blocks.1.up.weight.more", "up.weight"]
        {
            assert_eq!(find(unknown, &[2, 2]), None, "{unknown}");
        }
    }

    #[test]
    fn a_transposed_matrix_comes_back() {
        let up = find("blocks.0.up.weight", &[45, 70]).unwrap();
        let numbers: Vec<f32> = (0..45 * 70).map(|n| n as f32).collect();
        let stored = up.take_apart(numbers.clone());
        assert_eq!((stored[0], stored[1], stored[45]), (0.0, 70.0, 1.0));
        assert_eq!(up.assemble(stored), numbers);
        let bias = find("blocks.0.up.bias", &[3]).unwrap();
        assert_eq!(bias.assemble(vec![1.0, 2.0, 3.0]), [1.0, 2.0, 3.0]);
    }
}
