//! What a pass changed, whatever it numbered anew.
//!
//! ```text
//! - %4 = permute %3 {axes = [1, 0]} : f32[8,6]
//! - %5 = dot_general %2, %4 {.., rhs_contract = [0]} : f32[4,6]
//! + %+1 = dot_general %2, %3 {.., rhs_contract = [1]} : f32[4,6]  # in place of %5, by dot-of-permute
//! ```
//!
//! A node is unchanged if it stands for a node with the same op whose operands its own operands stand for, so what follows a
//! change is not itself one. Nodes keep the numbers of the graph before; new ones are `%+1`, `%+2`, …

use kernfusion_ir::{Graph, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The difference between a graph and what a pass made of it.
pub struct GraphDiff<'a> {
    before: &'a Graph,
    after: &'a Graph,
    /// The unchanged node that each node of the new graph is.
    same: Vec<Option<ValueId>>,
    /// The name of each node of the new graph.
    names: Vec<String>,
}

impl<'a> GraphDiff<'a> {
    /// Compares a graph with what became of it after it was marked ([`Graph::mark`]).
    pub fn new(before: &'a Graph, after: &'a Graph) -> Self {
        let mut same: Vec<Option<ValueId>> = Vec::with_capacity(after.len());
        let mut taken = BTreeSet::new();
        for id in after.ids() {
            let node = &after[id];
            let is_same = |&source: &ValueId| {
                let old = &before[source];
                let stands = |(&new, &old): (&ValueId, &ValueId)| after[new].origin.stands_for(old);
                node.origin.stands_for(source)
                    && !taken.contains(&source)
                    && old.op == node.op
                    && old.operands.len() == node.operands.len()
                    && node.operands.iter().zip(&old.operands).all(stands)
            };
            let found = node.origin.sources().iter().copied().find(is_same);
            taken.extend(found);
            same.push(found);
        }
        let mut new = 0;
        let name = |same: &Option<ValueId>| match same {
            Some(old) => format!("%{}", old.index()),
            None => {
                new += 1;
                format!("%+{new}")
            }
        };
        let names = same.iter().map(name).collect();
        GraphDiff { before, after, same, names }
    }

    /// Whether nothing changed but numbers.
    pub fn is_empty(&self) -> bool {
        self.removed().is_empty() && self.same.iter().all(Option::is_some)
    }

    /// The nodes that are not there any more.
    pub fn removed(&self) -> Vec<ValueId> {
        let kept: BTreeSet<_> = self.same.iter().flatten().collect();
        self.before.ids().filter(|id| !kept.contains(id)).collect()
    }

    /// The nodes of the new graph that were not there.
    pub fn added(&self) -> Vec<ValueId> {
        self.after.ids().filter(|id| self.same[id.index()].is_none()).collect()
    }

    /// Each op whose number changed: before and after.
    pub fn ops(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut counts: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        self.before.ids().for_each(|id| counts.entry(self.before[id].op.name()).or_default().0 += 1);
        self.after.ids().for_each(|id| counts.entry(self.after[id].op.name()).or_default().1 += 1);
        counts.retain(|_, (before, after)| before != after);
        counts
    }

    /// All changes in the order of the graph before: where they belong, and their text.
    fn lines(&self) -> Vec<(&str, String)> {
        let mut standing: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for id in self.after.ids() {
            let origin = &self.after[id].origin;
            for source in origin.sources().iter().filter(|source| origin.stands_for(**source)) {
                standing.entry(*source).or_insert(id);
            }
        }
        let removed = self.removed().into_iter().map(|id| {
            let now = standing.get(&id).filter(|now| self.same[now.index()].is_some());
            let now = now.map(|now| format!("  # now {}", self.names[now.index()])).unwrap_or_default();
            let text = text(self.before, id, |operand| format!("%{}", operand.index()));
            let scope = &*self.before[id].origin.scope;
            ((id, false, 0), (scope, format!("- %{} = {text}{now}", id.index())))
        });
        let added = self.added().into_iter().map(|id| {
            let origin = &self.after[id].origin;
            let text = text(self.after, id, |operand| self.names[operand.index()].clone());
            let sources: Vec<_> = origin.sources().iter().map(|id| format!("%{}", id.index())).collect();
            let rule = origin.rule().map(|rule| format!(", by {rule}")).unwrap_or_default();
            let stands = origin.sources().first().is_some_and(|&source| origin.stands_for(source));
            let relation = if stands { "in place of" } else { "for" };
            let name = &self.names[id.index()];
            let line = format!("+ {name} = {text}  # {relation} {}{rule}", sources.join(" "));
            let place = origin.sources().last().copied().unwrap_or(id);
            ((place, true, id.index()), (&*origin.scope, line))
        });
        let mut lines: Vec<_> = removed.chain(added).collect();
        lines.sort_by_key(|(place, _)| *place);
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

fn text(graph: &Graph, id: ValueId, name: impl Fn(ValueId) -> String) -> String {
    let node = &graph[id];
    let operands: Vec<_> = node.operands.iter().map(|&operand| name(operand)).collect();
    let blank = if operands.is_empty() { "" } else { " " };
    let attributes = node.op.attributes().brief();
    format!("{}{blank}{}{attributes} : {}", node.op.name(), operands.join(", "), node.ty)
}

impl fmt::Display for GraphDiff<'_> {
    /// The numbers of nodes by op, then the changes under the modules that they are in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (removed, added) = (self.removed().len(), self.added().len());
        let (before, after) = (self.before.len(), self.after.len());
        writeln!(
            f,
            "# {before} -> {after} nodes: {removed} removed, {added} added, {} kept",
            before - removed
        )?;
        for (op, (before, after)) in self.ops() {
            writeln!(f, "# {op:<16} {before:>6} -> {after:>6}  {:+}", after as i64 - before as i64)?;
        }
        let mut last = None;
        for (scope, line) in self.lines() {
            if last != Some(scope) {
                writeln!(f, "\n@@ {} @@", if scope.is_empty() { "outside of modules" } else { scope })?;
                last = Some(scope);
            }
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{find, run};

    fn difference(body: &str, pass: &str) -> String {
        let mut before = Graph::parse(&format!("graph \"g\" {{{body}}}")).unwrap();
        before.verify().unwrap();
        before.mark();
        let mut after = before.clone();
        run(&mut after, &[find(pass).unwrap()], None, &mut |_, _| {}).unwrap();
        GraphDiff::new(&before, &after).to_string()
    }

    #[test]
    fn what_follows_a_merged_node_is_no_change() {
        let body = r#"
            %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
            %1 = exp %0 : f32[4]
            %2 = exp %0 : f32[4]
            %3 = add %1, %2 : f32[4]
            %4 = sin %3 : f32[4]
            output "y" = %4"#;
        let expected = "# 5 -> 4 nodes: 1 removed, 0 added, 4 kept\n# exp                   2 ->      1  -1\n\n\
            @@ outside of modules @@\n- %2 = exp %0 : f32[4]  # now %1\n";
        assert_eq!(difference(body, "cse"), expected);
    }

    #[test]
    fn a_rewritten_node_names_what_it_stands_for_and_its_rule() {
        let body = r#"
            %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
            %1 = input {name = "y", dtype = f32, shape = [4]} : f32[4]
            %2 = neg %1 : f32[4] in "blocks.0"
            %3 = add %0, %2 : f32[4] in "blocks.0"
            %4 = sin %3 : f32[4] in "blocks.0"
            output "z" = %4"#;
        let text = difference(body, "simplify");
        let lines: Vec<_> = text.lines().skip_while(|line| !line.starts_with("@@")).collect();
        let expected = [
            "@@ blocks.0 @@",
            "- %2 = neg %1 : f32[4]",
            "- %3 = add %0, %2 : f32[4]",
            "+ %+1 = sub %0, %1 : f32[4]  # in place of %3, by add-neg",
        ];
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn new_numbers_alone_are_no_difference() {
        let body = r#"
            %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
            %1 = exp %0 : f32[4]
            output "y" = %1"#;
        assert_eq!(difference(body, "fold"), "# 2 -> 2 nodes: 0 removed, 0 added, 2 kept\n");
    }
}
