//! Which kernels must run before which, while kernels are merged.
//!
//! Groups are ranked so that what a group reads has a lower rank. A path between two groups rises in rank, so a search for one ends at the
//! rank of its end; a merge ranks again only what lies between the merged groups (Pearce and Kelly, "A dynamic topological sort algorithm
//! for directed acyclic graphs", 2007).

use std::cell::RefCell;
use std::collections::BTreeSet;

/// An order of groups by number.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupOrder {
    /// The groups that read each group.
    readers: Vec<BTreeSet<usize>>,
    /// The groups that each group reads.
    reads: Vec<BTreeSet<usize>>,
    /// The place of each group in `ranked`.
    rank: Vec<usize>,
    /// Groups, and those that were merged into others, whose place stays empty.
    ranked: Vec<usize>,
    /// What the last search came across.
    search: RefCell<Search>,
}

/// Marks of a search, which are kept so that the next one need not clear them.
#[derive(Debug, Clone, Default)]
struct Search {
    /// The search in which a group was marked last, twice its number: plus one if the group is where the search begins.
    marks: Vec<usize>,
    number: usize,
    stack: Vec<usize>,
}

impl GroupOrder {
    /// An order of `count` groups. `edges` are from each group to those that read it, whose numbers are larger.
    pub(super) fn new(count: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut order = GroupOrder {
            readers: vec![BTreeSet::new(); count],
            reads: vec![BTreeSet::new(); count],
            rank: (0..count).collect(),
            ranked: (0..count).collect(),
            search: RefCell::new(Search { marks: vec![0; count], ..Search::default() }),
        };
        for (from, to) in edges {
            debug_assert!(from < to, "group {from} is read by {to}");
            order.readers[from].insert(to);
            order.reads[to].insert(from);
        }
        order
    }

    /// Whether a path leads from these groups through another one back to them.
    pub(super) fn leaves_and_returns(&self, groups: &[usize]) -> bool {
        let mut search = self.search.borrow_mut();
        search.walk(groups, |group| &self.readers[group], &self.rank)
    }

    /// Makes one group of several, from which no path leaves and returns. The first of them stays.
    pub(super) fn merge(&mut self, groups: &[usize]) {
        let members = set(groups);
        let ranks = members.iter().map(|&group| self.rank[group]);
        let (start, end) = (ranks.clone().min().unwrap_or(0), ranks.max().unwrap_or(0));
        // Between the first and the last of them: what does not depend on them, they themselves, and what does.
        let mut search = self.search.borrow_mut();
        search.walk(groups, |group| &self.readers[group], &self.rank);
        let between = self.ranked[start..=end].to_vec();
        let earlier =
            between.iter().copied().filter(|&group| !search.is_start(group) && !search.found(group));
        let dependent = between.iter().copied().filter(|&group| search.found(group));
        let ranked: Vec<_> = earlier.chain(groups.iter().copied()).chain(dependent).collect();
        for (place, group) in ranked.into_iter().enumerate() {
            self.ranked[start + place] = group;
            self.rank[group] = start + place;
        }
        let kept = groups[0];
        for &group in groups {
            let (readers, reads) =
                (std::mem::take(&mut self.readers[group]), std::mem::take(&mut self.reads[group]));
            for reader in readers.difference(&members) {
                self.reads[*reader].remove(&group);
                self.reads[*reader].insert(kept);
            }
            for read in reads.difference(&members) {
                self.readers[*read].remove(&group);
                self.readers[*read].insert(kept);
            }
            self.readers[kept].extend(readers.difference(&members));
            self.reads[kept].extend(reads.difference(&members));
        }
    }
}

impl Search {
    /// Marks the groups outside of these that depend on one of them, up to the rank of the last of them, and says whether one of
    /// these depends on what is marked. Then not all need be marked.
    fn walk<'r>(
        &mut self,
        groups: &[usize],
        readers: impl Fn(usize) -> &'r BTreeSet<usize>,
        rank: &[usize],
    ) -> bool {
        self.number += 1;
        let (outside, start) = (2 * self.number, 2 * self.number + 1);
        let end = groups.iter().map(|&group| rank[group]).max().unwrap_or(0);
        groups.iter().for_each(|&group| self.marks[group] = start);
        self.stack.clear();
        self.stack.extend(groups);
        while let Some(group) = self.stack.pop() {
            for &reader in readers(group) {
                match self.marks[reader] {
                    mark if mark == start && self.marks[group] == outside => return true,
                    mark if mark == start || mark == outside || rank[reader] > end => {}
                    _ => {
                        self.marks[reader] = outside;
                        self.stack.push(reader);
                    }
                }
            }
        }
        false
    }

    /// Whether the last search began at a group.
    fn is_start(&self, group: usize) -> bool {
        self.marks[group] == 2 * self.number + 1
    }

    /// Whether the last search marked a group.
    fn found(&self, group: usize) -> bool {
        self.marks[group] == 2 * self.number
    }
}

fn set(groups: &[usize]) -> BTreeSet<usize> {
    groups.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `leaves_and_returns`, from the edges between nodes and the group of each.
    fn judged(edges: &[(usize, usize)], group_of: &[usize], groups: &[usize]) -> bool {
        let next = |from: usize| {
            let of = edges.iter().filter(move |edge| group_of[edge.0] == from);
            of.map(|edge| group_of[edge.1]).filter(move |&to| to != from)
        };
        let mut seen: BTreeSet<_> = groups.iter().flat_map(|&group| next(group)).collect();
        seen.retain(|group| !groups.contains(group));
        let mut stack: Vec<_> = seen.iter().copied().collect();
        while let Some(group) = stack.pop() {
            for to in next(group) {
                if groups.contains(&to) {
                    return true;
                }
                if seen.insert(to) {
                    stack.push(to);
                }
            }
        }
        false
    }

    proptest! {
        #[test]
        fn paths_are_found_whatever_is_merged(
            edges in prop::collection::vec((0usize..24, 1usize..24), 0..60),
            merges in prop::collection::vec(prop::collection::btree_set(0usize..24, 2..4), 0..40),
        ) {
            let edges: Vec<_> = edges.into_iter().filter(|(from, to)| from < to).collect();
            let mut order = GroupOrder::new(24, edges.iter().copied());
            let mut group_of: Vec<usize> = (0..24).collect();
            for nodes in merges {
                // Also against their order.
                let groups: BTreeSet<_> = nodes.iter().map(|&node| group_of[node]).collect();
                let groups: Vec<_> = groups.into_iter().rev().collect();
                let expected = judged(&edges, &group_of, &groups);
                prop_assert_eq!(order.leaves_and_returns(&groups), expected);
                if !expected {
                    order.merge(&groups);
                    group_of.iter_mut().filter(|group| groups.contains(group)).for_each(|group| *group = groups[0]);
                }
            }
        }
    }
}
