//! Copying a graph node by node, the way every pass works.

use kernfusion_ir::{Builder, Graph, Node, Result, ValueId};

/// A new graph under construction and where the old graph's values went.
pub struct Rebuild<'a> {
    old: &'a Graph,
    /// The graph so far.
    pub new: Graph,
    places: Vec<Option<ValueId>>,
}

impl<'a> Rebuild<'a> {
    /// Starts with an empty graph.
    pub fn new(old: &'a Graph) -> Self {
        Rebuild { old, new: Graph::new(old.name.clone()), places: vec![None; old.len()] }
    }

    /// Where an old value went.
    ///
    /// # Panics
    /// If it was dropped: a pass may only drop what nothing kept uses.
    pub fn place(&self, old: ValueId) -> ValueId {
        self.places[old.index()].unwrap_or_else(|| panic!("%{} was dropped but is used", old.index()))
    }

    /// The operands of an old node in the new graph.
    pub fn operands(&self, node: &Node) -> Vec<ValueId> {
        node.operands.iter().map(|&operand| self.place(operand)).collect()
    }

    /// Copies a node.
    ///
    /// # Errors
    /// If its operands have changed their types.
    pub fn copy(&mut self, id: ValueId) -> Result<ValueId> {
        let node = &self.old[id];
        let operands = self.operands(node);
        let new = self.new.add(node.op.clone(), &operands, node.origin.clone())?;
        Ok(self.replace(id, new))
    }

    /// Says that an old value is now `new`.
    pub fn replace(&mut self, old: ValueId, new: ValueId) -> ValueId {
        self.places[old.index()] = Some(new);
        self.new.absorb(new, &self.old[old].origin);
        new
    }

    /// Appends nodes with the origin of an old one, to be its replacement or to help.
    pub fn builder(&mut self, origin_of: ValueId) -> Builder<'_> {
        Builder::new(&mut self.new, self.old[origin_of].origin.helping())
    }

    /// The new graph, with the old one's outputs.
    pub fn finish(mut self) -> Graph {
        for output in self.old.outputs() {
            let value = self.place(output.value);
            match output.updates_state {
                true => self.new.update(output.name.clone(), value),
                false => self.new.output(output.name.clone(), value),
            }
        }
        self.new
    }
}
