//! Nodes of column generation, then patterns for the rest.

use crate::classes::PodCounts;
use crate::classes::shapes::Shapes;
use crate::ids::{EligibilityId, ShapeId, TypeId};
use crate::packing::bins::Fit;
use crate::packing::packer::Packer;
use crate::packing::patterns;

/// The columns of a linear program, rounded to whole nodes.
pub(crate) struct RoundedColumns<'s> {
    /// The classes behind the shapes of the columns.
    pub(crate) shapes: &'s Shapes,
    pub(crate) columns: Vec<RoundedColumn>,
}

/// A column with a number of nodes.
pub(crate) struct RoundedColumn {
    pub(crate) start: EligibilityId,
    pub(crate) instance_type: TypeId,
    /// Number of pods of each shape.
    pub(crate) load: Vec<(ShapeId, usize)>,
    /// Number of nodes.
    pub(crate) copies: usize,
}

/// Opens the nodes of the columns and packs the rest by patterns.
pub(super) fn pack(
    packer: &mut Packer<'_, '_>,
    pending: &mut PodCounts,
    prices: &[f64],
    columns: Option<&RoundedColumns<'_>>,
) {
    if let Some(RoundedColumns { shapes, columns }) = columns {
        for column in columns {
            for _ in 0..column.copies {
                open_column(packer, column, shapes, pending);
            }
        }
    }
    patterns::pack(packer, pending, prices);
}

fn open_column(
    packer: &mut Packer<'_, '_>,
    column: &RoundedColumn,
    shapes: &Shapes,
    pending: &mut PodCounts,
) {
    let classes = packer.classes;
    let RoundedColumn { start, instance_type, load, .. } = column;
    let cpu = packer.offerings.table_of(*start).types[*instance_type].cpu;
    let bin = packer.open_bin(*start, cpu);
    let mut eligibility = *start;
    for (shape, count) in load {
        let mut wanted = *count;
        for class in shapes.members[*shape].iter().copied() {
            let taken = wanted.min(pending[class]);
            if taken == 0 {
                continue;
            }
            let terms = &classes[class].terms;
            let narrowed = packer.offerings.narrow_keeping(eligibility, terms, *instance_type);
            // Pods that conflict with those already on the bin go elsewhere.
            let Some(narrowed) = narrowed else { break };
            eligibility = narrowed;
            let added = packer.add(bin, class, &Fit { eligibility, room: taken }, taken);
            pending[class] -= added;
            wanted -= added;
        }
    }
    if packer.bins[bin].pods == 0 {
        packer.bins.pop();
    }
}
