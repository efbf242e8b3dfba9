//! Pods and machines as column generation sees them, and how its columns become nodes.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;

use crate::classes::holds;
use crate::intern::Interner;
use crate::offerings::index::OfferingIndex;
use crate::optimize::column_generation::{
    Column, Columns, MAX_SHAPES, Machine, Shape, undominated,
};
use crate::packing::first_fit::{Fit, Packer, PackingProblem};
use crate::packing::result::Packing;

/// The most groups of pods with wishes of their own for which machines are listed.
const MAX_WISHES: usize = 16;

/// Columns for the pods that wait, with the classes that are behind their shapes.
pub(crate) struct ColumnSolution {
    columns: Columns,
    /// The classes of each shape, in order.
    members: Vec<Vec<usize>>,
}

/// What to buy first: columns and how many nodes of each.
pub(crate) struct RoundedColumns<'r> {
    recipes: &'r ColumnSolution,
    bought: Vec<(usize, usize)>,
}

impl ColumnSolution {
    /// Finds columns for the pods that wait, beginning with the nodes of a packing. Only where no
    /// pod depends on another, nothing is merely liked, and no pool wants a choice of types.
    pub(crate) fn of(
        offerings: &mut OfferingIndex<'_>,
        task: &PackingProblem<'_, '_>,
        known: &Packing,
    ) -> Option<Self> {
        let classes = &task.classes.list;
        let waiting: Vec<usize> =
            (0..classes.len()).filter(|number| task.pending[*number] > 0).collect();
        let is_free = |number: &usize| {
            classes[*number].coupling.is_none() && !classes[*number].has_preferences()
        };
        let same_priority =
            waiting.windows(2).all(|pair| classes[pair[0]].priority == classes[pair[1]].priority);
        if !waiting.iter().all(is_free)
            || !same_priority
            || known.unplaced.iter().any(|count| *count > 0)
        {
            return None;
        }
        let mut numbers: Interner<(&[i64], usize)> = Interner::default();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut shape_of = vec![usize::MAX; classes.len()];
        for number in waiting {
            let shape = numbers.number((&classes[number].row, classes[number].wish));
            if shape == members.len() {
                members.push(Vec::new());
            }
            members[shape].push(number);
            shape_of[number] = shape;
        }
        if members.len() > MAX_SHAPES {
            return None;
        }
        let count = |classes: &[usize]| classes.iter().map(|class| task.pending[*class]).sum();
        let rows = numbers.items.iter().map(|(row, _)| row.to_vec());
        let shapes: Vec<Shape> =
            rows.zip(&members).map(|(row, members)| Shape { row, count: count(members) }).collect();
        let machines = machines(offerings, task, &members)?;
        let mut seeds: Vec<Column> = Vec::new();
        for (index, bin) in known.bins.iter().enumerate() {
            let pool = offerings.signature(bin.signature).pool;
            let mut load: BTreeMap<usize, usize> = BTreeMap::new();
            for (class, count) in &bin.content {
                *load.entry(shape_of[*class]).or_default() += count;
            }
            let machine = machines.iter().position(|machine| {
                offerings.signature(machine.tag.0).pool == pool
                    && holds(&machine.free, known.used(index))
                    && load.keys().all(|shape| machine.allows.contains(*shape))
            });
            seeds.extend(
                machine.map(|machine| Column { machine, load: load.into_iter().collect() }),
            );
        }
        seeds.sort_unstable();
        seeds.dedup();
        let columns = Columns::find(shapes, machines, seeds, task.most_pods)?;
        Some(Self { columns, members })
    }

    pub(crate) fn purchase(&self, least: f64) -> RoundedColumns<'_> {
        RoundedColumns { recipes: self, bought: self.columns.purchase(least) }
    }
}

/// The machines that pods could open: for each pool, and for each place in a pool that some of them
/// insist on. Nobody opens one in a pool while a heavier one has something for him.
fn machines(
    offerings: &mut OfferingIndex<'_>,
    task: &PackingProblem<'_, '_>,
    members: &[Vec<usize>],
) -> Option<Vec<Machine>> {
    let classes = &task.classes.list;
    let of_shape = |shape: usize| &classes[members[shape][0]];
    let mut starts: BTreeMap<usize, i32> = BTreeMap::new();
    let mut wishes: BTreeMap<usize, i32> = BTreeMap::new();
    for shape in 0..members.len() {
        let class = of_shape(shape);
        if wishes.contains_key(&class.wish) {
            continue;
        }
        let mut heaviest = None;
        for pool in 0..offerings.pools.len() {
            let weight = offerings.pools[pool].pool.weight;
            if heaviest.is_some_and(|heaviest| heaviest > weight) {
                break;
            }
            if !offerings.tolerates(pool, class) {
                continue;
            }
            for term in &class.terms {
                if let Some(start) = offerings.step(pool, *term)
                    && !offerings.signature(start).types.is_empty()
                {
                    starts.insert(start, weight);
                    heaviest = Some(weight);
                }
            }
        }
        wishes.insert(class.wish, heaviest?);
    }
    if wishes.len() > MAX_WISHES {
        return None;
    }
    let mut machines: Vec<Machine> = Vec::new();
    for (start, weight) in starts {
        let signature = std::rc::Rc::clone(offerings.signature(start));
        if !signature.diversities.is_empty() {
            return None;
        }
        let mut leads: Vec<Vec<usize>> = Vec::with_capacity(members.len());
        for shape in 0..members.len() {
            let class = of_shape(shape);
            let mut to = Vec::new();
            if wishes[&class.wish] == weight && offerings.tolerates(signature.pool, class) {
                to = class.terms.iter().filter_map(|term| offerings.step(start, *term)).collect();
            }
            leads.push(to);
        }
        for (price, kind) in &signature.types {
            let mut allows = FixedBitSet::with_capacity(members.len());
            for (shape, leads) in leads.iter().enumerate() {
                allows.set(
                    shape,
                    leads.iter().any(|to| offerings.signature(*to).kinds.contains(*kind)),
                );
            }
            let free = offerings.table(&signature).free(*kind).to_vec();
            machines.push(Machine {
                free,
                price: dollars(price.micros()),
                allows,
                tag: (start, *kind),
            });
        }
    }
    Some(undominated(machines))
}

#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 micro-dollars")]
pub(crate) fn dollars(micros: i64) -> f64 {
    micros.max(0) as f64 / 1e6
}

impl Packer<'_, '_> {
    /// Opens the nodes that were bought, and packs whatever is left by patterns.
    pub(crate) fn pack_by_columns(
        &mut self,
        pending: &mut [usize],
        worth: &[f64],
        purchase: Option<&RoundedColumns<'_>>,
    ) {
        if let Some(RoundedColumns { recipes: ColumnSolution { columns, members }, bought }) =
            purchase
        {
            for (column, copies) in bought {
                let Column { machine, load } = &columns.list[*column];
                let (start, kind) = columns.machines[*machine].tag;
                for _ in 0..*copies {
                    self.open_column(start, kind, load, members, pending);
                }
            }
        }
        self.pack_by_patterns(pending, worth);
    }

    fn open_column(
        &mut self,
        start: usize,
        kind: usize,
        load: &[(usize, usize)],
        members: &[Vec<usize>],
        pending: &mut [usize],
    ) {
        let classes = self.classes;
        let cpu = self.offerings.table(self.offerings.signature(start)).types[kind].cpu;
        self.push_bin(start, cpu);
        let index = self.bins.len() - 1;
        let mut signature = start;
        for (shape, count) in load {
            let mut wanted = *count;
            for number in &members[*shape] {
                let taken = wanted.min(pending[*number]);
                if taken == 0 {
                    continue;
                }
                let mut terms = classes.list[*number].terms.iter();
                let next = terms.find_map(|term| {
                    let next = self.offerings.step(signature, *term)?;
                    self.offerings.signature(next).kinds.contains(kind).then_some(next)
                });
                // Those who cannot share a node with the ones before go elsewhere.
                let Some(next) = next else { break };
                signature = next;
                let added = self.add(index, *number, &Fit { signature, room: taken }, taken);
                pending[*number] -= added;
                wanted -= added;
            }
        }
        if self.bins[index].pods == 0 {
            self.pop_draft();
        }
    }
}
