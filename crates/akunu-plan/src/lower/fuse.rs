//! Rewrites a graph to fewer operations with more work each, depending on the device's capabilities. One function per
//! rewrite; each looks for a pattern of steps, and none changes the order of the remaining ones.

use std::ops::RangeInclusive;

use super::graph::{
    Action, Attend, Columns, DeferredNorm, Graph, Part, Product, Read, RoutedBy, Step, Unfinished, Value,
};
use super::pass::{Products, multiplies_eights};
use super::weights::Matrix;
use crate::ops::{AllReduce, RowSet, is_half};
use crate::{BufferId, DType, KvType, Side, halves, q8};
use akunu_arch::NormKind;

/// The conditions of the rewrites.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Products of the same input are joined if their types are equal, and products with their activations.
    pub joins: bool,
    /// Norms are folded into the neighbouring products, and RoPE into attention: for tables of one row.
    pub folds: bool,
    /// Experts are found by the picks of the router, and rows are not sorted: for tables of one row, whose experts all
    /// differ.
    pub picks: bool,
    pub products: Products,
    /// Matrices for the logits are multiplied packed, if their type suits.
    pub packs_logits: bool,
    /// The rows of the table, if experts with many rows each may be multiplied packed.
    pub rows_of_packed_experts: Option<usize>,
    pub kv: KvType,
}

pub(super) fn fuse(mut graph: Graph, rules: Rules) -> Graph {
    join_qkv(&mut graph, rules);
    let halves = matches!(rules.products, Products::Packed | Products::Converted);
    if rules.joins {
        join_gate_and_up(&mut graph, rules);
        activate_at_once(&mut graph, rules);
    }
    norm_then_add(&mut graph);
    add_at_once(&mut graph);
    if rules.picks {
        find_by_picks(&mut graph);
    }
    if rules.folds {
        defer_norms(&mut graph);
        rotate_in_attention(&mut graph);
    }
    leave_queries(&mut graph);
    if rules.packs_logits {
        pack_logits(&mut graph, rules.products);
    }
    if rules.products == Products::Eights {
        leave_other_types(&mut graph);
    }
    if let Some(rows) = rules.rows_of_packed_experts {
        pack_experts(&mut graph, rows);
    }
    if halves {
        read_with_experts(&mut graph);
        finish_in_activation(&mut graph);
        if rules.kv != KvType::Q8_0 {
            finish_in_cache(&mut graph);
        }
    }
    graph
}

impl Rules {
    /// How the products on a side multiply: the host does not in half precision.
    fn products(self, side: Side) -> Products {
        if side.is_host() { Products::Plain } else { self.products }
    }
}

/// Replaces `count` steps from `at` on by one.
fn replace(graph: &mut Graph, at: usize, count: usize, label: String, action: Action) {
    let side = graph.steps[at].side;
    graph.steps.splice(at..at + count, [Step { label, action, side }]);
}

/// Whether `count` steps from `at` on are all computed by the host, or none is. The layers of several devices are joined as
/// those of one, so that they have its bits: what is joined is the first one's.
fn beside(graph: &Graph, at: usize, count: usize) -> bool {
    graph.steps[at..at + count].windows(2).all(|pair| pair[0].side.is_host() == pair[1].side.is_host())
}

/// Joins products of the same input with adjacent outputs: Q, K and V.
fn join_qkv(graph: &mut Graph, rules: Rules) {
    let mut at = 0;
    while at + 3 <= graph.steps.len() {
        let three: Vec<&Product> = graph.steps[at..at + 3].iter().map_while(plain_product).collect();
        if let [q, k, v] = three[..]
            && beside(graph, at, 3)
            && joins([q, k, v], rules, graph.steps[at].side)
        {
            let parts = [q, k, v].into_iter().flat_map(|product| product.parts.clone()).collect();
            let joined = Product { parts, ..q.clone() };
            let prefix = graph.steps[at].label.rsplit_once('.').map_or("", |(prefix, _)| prefix);
            let label = format!("{prefix}.qkv");
            replace(graph, at, 3, label, Action::Product(joined));
        }
        at += 1;
    }
}

fn joins(products: [&Product; 3], rules: Rules, side: Side) -> bool {
    let side_by_side = products.windows(2).all(|pair| {
        let (a, b) = (&pair[0], &pair[1]);
        a.x == b.x && a.out.of == b.out.of && a.out.first < b.out.first
    });
    let parts = || products.iter().flat_map(|product| &product.parts);
    let same = |of: &dyn Fn(&super::graph::Part) -> bool| parts().all(of) || !parts().any(of);
    let first = products[0].parts[0].matrix.dtype;
    let alike = || parts().all(|part| part.matrix.dtype == first);
    let unbiased = || parts().all(|part| part.bias.is_none());
    side_by_side
        && match rules.products(side) {
            Products::Plain => rules.joins && alike() && same(&|part| part.bias.is_some()),
            Products::Packed => first.is_quantised() && alike() && unbiased(),
            Products::Eights => false,
            // f16 weights are multiplied in place, and only converted weights can be concatenated.
            Products::Converted => {
                let unpacked = |dtype: DType| !matches!(dtype, DType::F32 | DType::F16);
                parts().all(|part| unpacked(part.matrix.dtype)) && unbiased()
            }
        }
}

/// A product of one matrix that has not been combined with anything yet.
fn plain_product(step: &Step) -> Option<&Product> {
    match &step.action {
        Action::Product(product)
            if product.parts.len() == 1
                && product.residual.is_none()
                && product.activation.is_none()
                && product.rows == RowSet::All =>
        {
            Some(product)
        }
        _ => None,
    }
}

/// Joins gate, up and their activation into one product.
fn join_gate_and_up(graph: &mut Graph, rules: Rules) {
    let mut at = 0;
    while at + 3 <= graph.steps.len() {
        let products = [at, at + 1].map(|i| plain_product(&graph.steps[i]));
        if let ([Some(gate), Some(up)], Action::Glu { activation, gate: g, up: u, out }) =
            (products, &graph.steps[at + 2].action)
            && rules.products(graph.steps[at].side) == Products::Plain
            && beside(graph, at, 3)
            && (gate.out.of, up.out.of, gate.x) == (*g, *u, up.x)
            && gate.parts[0].matrix.dtype == up.parts[0].matrix.dtype
            && gate.parts[0].bias.is_none()
            && up.parts[0].bias.is_none()
        {
            let action = Action::GluProduct {
                activation: *activation,
                x: gate.x,
                gate: gate.parts[0].matrix,
                up: up.parts[0].matrix,
                out: *out,
                deferred: None,
            };
            let label = graph.steps[at + 2].label.replace("ffn_act", "ffn_glu");
            replace(graph, at, 3, label, action);
        }
        at += 1;
    }
}

/// Combines a product with the activation of its output.
fn activate_at_once(graph: &mut Graph, rules: Rules) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(Action::Activate { activation, x, unfinished: None, rows: RowSet::All, out }) =
            graph.steps.get(at + 1).map(|step| &step.action)
        else {
            continue;
        };
        let (activation, x, out) = (*activation, *x, *out);
        let whole = plain_product(&graph.steps[at]).is_some_and(|product| {
            let all = product.parts[0].matrix.rows == graph.cols(x);
            product.out.of == x && all && product.soft_cap == 0.0
        });
        let plain = rules.products(graph.steps[at].side) == Products::Plain;
        if whole && plain && graph.uses(x) == 1 && beside(graph, at, 2) {
            if let Action::Product(product) = &mut graph.steps[at].action {
                (product.activation, product.out.of) = (Some(activation), out);
            }
            graph.steps.remove(at + 1);
        }
    }
}

/// Combines a norm with the addition of its output to the residual.
fn norm_then_add(graph: &mut Graph) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(Step { action: Action::Norm { norm, x, rows: RowSet::All, out: normed }, label, .. }) =
            graph.steps.get(at)
        else {
            continue;
        };
        let Some(Action::Add { residual, x: added, scale, out }) =
            graph.steps.get(at + 1).map(|step| &step.action)
        else {
            continue;
        };
        let fits = *scale == 1.0 && norm.kind == NormKind::Rms && beside(graph, at, 2);
        if added == normed && fits && graph.uses(*normed) == 1 {
            let action = Action::NormAdd { norm: *norm, x: *x, residual: *residual, out: *out };
            let label = label.clone();
            replace(graph, at, 2, label, action);
        }
    }
}

/// Combines a product, or the sum of experts or of ranks, with the addition of its output to the residual.
fn add_at_once(graph: &mut Graph) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(Action::Add { residual, x, scale, out }) = graph.steps.get(at + 1).map(|step| &step.action)
        else {
            continue;
        };
        let (residual, x, scale, out) = (*residual, *x, *scale, *out);
        let only = graph.uses(x) == 1 && beside(graph, at, 2);
        let (added, written) = match &mut graph.steps[at].action {
            // A product adds before it activates.
            Action::Product(product) if product.activation.is_none() => {
                (&mut product.residual, &mut product.out.of)
            }
            Action::Combine { residual, out, .. } | Action::AllReduce { residual, out, .. } => {
                (residual, out)
            }
            _ => continue,
        };
        if *written == x && added.is_none() && scale == 1.0 && only {
            (*added, *written) = (Some(residual), out);
            graph.steps.remove(at + 1);
        }
    }
}

/// Defers a norm that directly follows the product, or the sum over ranks, whose output it normalizes, and whose output is
/// read only by products: the product multiplies by the norm's weights and sums squares, and the consumers divide.
fn defer_norms(graph: &mut Graph) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(Action::Norm { norm, x, rows: RowSet::All, out: normed }) =
            graph.steps.get(at + 1).map(|step| &step.action)
        else {
            continue;
        };
        let (norm, x, normed) = (*norm, *x, *normed);
        let cols = graph.cols(x);
        let on_device = graph.steps[at..at + 2].iter().all(|step| !step.side.is_host());
        let fits = on_device && norm.kind == NormKind::Rms && cols.is_multiple_of(q8::BLOCK);
        let writes_x = match &graph.steps[at].action {
            Action::Product(product) => {
                product.out.of == x && product.residual.is_some() && product.rows == RowSet::All
            }
            Action::AllReduce { residual: Some(_), out, .. } => *out == x && cols <= AllReduce::MOST_NORMED,
            _ => false,
        };
        if !(fits && writes_x && graph.steps.iter().all(|step| may_divide(&step.action, normed))) {
            continue;
        }
        let squares = graph.value("squares", cols / q8::BLOCK, RowSet::All);
        if let Action::Product(Product { defers, .. }) | Action::AllReduce { defers, .. } =
            &mut graph.steps[at].action
        {
            *defers = Some(DeferredNorm { norm, normed, squares });
        }
        graph.steps.remove(at + 1);
        for step in &mut graph.steps {
            match &mut step.action {
                Action::Product(product) if product.x == normed => product.deferred = Some(squares),
                Action::GluProduct { x, deferred, .. } if *x == normed => *deferred = Some(squares),
                _ => {}
            }
        }
    }
}

/// Whether an operation does not read the value, or reads it as the input of a product, which can divide.
fn may_divide(action: &Action, value: Value) -> bool {
    match action {
        Action::Product(product) => {
            product.residual != Some(value) && (product.x != value || product.rows == RowSet::All)
        }
        Action::GluProduct { .. } => true,
        other => other.reads().iter().all(|(read, _)| *read != value),
    }
}

/// Attention over one row applies RoPE itself, unless norms follow it.
fn rotate_in_attention(graph: &mut Graph) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(Action::RopeKv { rotation, qkv, q, .. }) = graph.steps.get(at).map(|step| &step.action)
        else {
            continue;
        };
        let (rotation, qkv, q) = (*rotation, *qkv, *q);
        let Some(Step { action: Action::Attend(attend), label, side }) = graph.steps.get(at + 1) else {
            continue;
        };
        if side.is_host() {
            continue;
        }
        if q == Some(attend.q) && !rotation.norm_last {
            let action = Action::Attend(Attend { q: qkv, rotation: Some(rotation), ..attend.clone() });
            let label = label.clone();
            replace(graph, at, 2, label, action);
        }
    }
}

/// Without rotation and norms of heads nothing changes Q, so it need not be copied: its product writes it to where
/// attention reads it, and those of K and V write to a value of their own.
fn leave_queries(graph: &mut Graph) {
    for at in 0..graph.steps.len() {
        let Action::RopeKv { rotation, qkv, q: Some(q), heads, .. } = &graph.steps[at].action else {
            continue;
        };
        if rotation.rope.is_some() || rotation.norms.is_some() {
            continue;
        }
        let (qkv, q, q_size, kv_size) = (*qkv, *q, heads.q_size(), heads.kv_size());
        let writers = || graph.steps.iter().filter(|step| step.action.writes().contains(&qkv));
        let apart =
            |step: &Step| matches!(&step.action, Action::Product(product) if product.parts.len() == 1);
        if !writers().all(apart) {
            continue;
        }
        let kv = graph.value("kv", 2 * kv_size, RowSet::All);
        for step in &mut graph.steps {
            if let Action::Product(Product { out, .. }) = &mut step.action
                && out.of == qkv
            {
                *out = match out.first.checked_sub(q_size) {
                    None => Columns { of: q, ..*out },
                    Some(first) => Columns { of: kv, first },
                };
            }
        }
        if let Action::RopeKv { qkv, q, .. } = &mut graph.steps[at].action {
            (*qkv, *q) = (kv, None);
        }
    }
}

/// Products with experts read the rows of the pass and the picks of the router, so that nothing sorts the rows, and the
/// last one adds up what the experts of a row give.
fn find_by_picks(graph: &mut Graph) {
    for at in (0..graph.steps.len()).rev() {
        let Action::Gather { picks, x: row, experts, out: gathered, starts, .. } = graph.steps[at].action
        else {
            continue;
        };
        graph.steps.remove(at);
        let of = |step: &Step| matches!(&step.action, Action::ExpertProduct { sorted, .. } if sorted.starts == starts);
        let Some(product) = graph.steps.iter().position(of).map(|at| graph.steps.remove(at)) else {
            continue;
        };
        let Action::ExpertProduct { x, part, out: given, .. } = product.action else { continue };
        for step in &mut graph.steps {
            match &mut step.action {
                Action::ExpertGlu { x, routed, .. } if *x == gathered => {
                    (*x, routed.by) = (row, RoutedBy::Picks(picks));
                }
                Action::Combine { y, shares, shared, residual, out, .. } if *y == given => {
                    let (shares, shared, residual, out, part) =
                        (*shares, *shared, *residual, *out, part.clone());
                    let action = Action::ExpertSum { x, experts, picks, shares, part, shared, residual, out };
                    *step = Step { label: product.label.clone(), action, side: step.side };
                }
                _ => {}
            }
        }
    }
}

/// Rows that an expert has to have on average, in a full table, to be multiplied packed: with fewer, products of int8 are
/// faster.
const PACKED_ROWS_OF_EXPERT: usize = 64;
/// Sorted rows that are rounded to f16 at once: a threadgroup has a row, of which CUDA has as many in a dimension.
const MOST_SORTED_ROWS: usize = 65_535;

/// Experts with many rows each are multiplied packed, and with them what reads the same rows, except for routers.
fn pack_experts(graph: &mut Graph, rows: usize) {
    for at in 0..graph.steps.len() {
        let Some(packed) = packed_experts(graph, at).filter(|packed| packed.rows().contains(&rows)) else {
            continue;
        };
        for index in packed.steps {
            match &mut graph.steps[index].action {
                Action::Product(product) => product.packed = true,
                Action::ExpertGlu { packed, .. } | Action::ExpertProduct { packed, .. } => *packed = true,
                Action::Gather { readers, .. } => readers.fill(Read::Lanes),
                _ => {}
            }
        }
    }
}

/// The fewest rows of a table in which experts are multiplied packed; `None` if none can be.
pub(super) fn rows_of_packed_experts(graph: &Graph) -> Option<usize> {
    (0..graph.steps.len()).filter_map(|at| packed_experts(graph, at)).map(|packed| packed.least_rows).min()
}

/// What is multiplied packed with the experts of a layer.
struct PackedExperts {
    steps: Vec<usize>,
    least_rows: usize,
    most_rows: usize,
}

impl PackedExperts {
    /// The rows of a table in which they are packed.
    fn rows(&self) -> RangeInclusive<usize> {
        self.least_rows..=self.most_rows
    }
}

/// Of the layer whose rows step `at` sorts.
fn packed_experts(graph: &Graph, at: usize) -> Option<PackedExperts> {
    let Step { action: Action::Gather { x, experts, picks, out: sorted, .. }, side, .. } = graph.steps[at]
    else {
        return None;
    };
    let products = products_to_pack(graph, sorted).filter(|_| !side.is_host())?;
    let steps = products.into_iter().chain(beside_experts(graph, x)?).chain([at]).collect();
    let top = graph.cols(picks);
    let least_rows = (PACKED_ROWS_OF_EXPERT * experts).div_ceil(top);
    Some(PackedExperts { steps, least_rows, most_rows: MOST_SORTED_ROWS / top })
}

/// Both products of the experts that read `sorted`, if all of their weights can be multiplied packed.
fn products_to_pack(graph: &Graph, sorted: Value) -> Option<[usize; 2]> {
    let packs = |part: &Part| {
        let Matrix { dtype, cols, .. } = part.matrix;
        dtype.is_quantised() && cols.is_multiple_of(halves::GROUP) && part.bias.is_none()
    };
    let (first, act) = graph.steps.iter().enumerate().find_map(|(index, step)| match &step.action {
        Action::ExpertGlu { x, gate, up, out, .. } if *x == sorted => {
            (packs(gate) && packs(up)).then_some((index, *out))
        }
        _ => None,
    })?;
    let reads = |step: &Step| matches!(&step.action, Action::ExpertProduct { x, part, .. } if *x == act && packs(part));
    let second = graph.steps.iter().position(reads)?;
    Some([first, second])
}

/// The products of quantised weights that read `x` beside experts, if all can be multiplied packed. Routers cannot: in half
/// precision they would choose others. Products of other weights read f32.
fn beside_experts(graph: &Graph, x: Value) -> Option<Vec<usize>> {
    let is_routed = |value: Value| {
        let routes = |step: &Step| matches!(step.action, Action::Route { logits, .. } if logits == value);
        graph.steps.iter().any(routes)
    };
    let mut found = Vec::new();
    for (index, step) in graph.steps.iter().enumerate() {
        let Action::Product(product) = &step.action else { continue };
        let quantised = product.parts.iter().any(|part| part.matrix.dtype.is_quantised());
        if product.x != x || !quantised {
            continue;
        }
        let packs = graph.cols(x).is_multiple_of(halves::GROUP)
            && product.parts.len() == 1
            && product.rows == RowSet::All
            && product.soft_cap == 0.0
            && !step.side.is_host();
        if !packs || is_routed(product.out.of) {
            return None;
        }
        found.push(index);
    }
    Some(found)
}

/// Products of what experts read, too (routers, and experts that all rows share), read it in the form that these read:
/// no operation writes all forms, and a router in half precision would choose others.
fn read_with_experts(graph: &mut Graph) {
    let gathered = graph.steps.iter().filter_map(|step| match step.action {
        Action::Gather { x, .. } | Action::WeighInputs { x, .. } => Some(x),
        _ => None,
    });
    let gathered: Vec<Value> = gathered.collect();
    for step in &mut graph.steps {
        if let Action::Product(product) = &mut step.action {
            product.unhalved |= !product.packed && gathered.contains(&product.x);
        }
    }
}

/// Products of other types than FP8 read rows in f32, and not rows in FP8, which are less exact.
fn leave_other_types(graph: &mut Graph) {
    let Graph { steps, values, .. } = graph;
    for step in steps {
        if let Action::Product(product) = &mut step.action {
            product.unhalved |= !product.packed && !multiplies_eights(product, values[product.out.of.0].cols);
        }
    }
}

/// The rows for logits are f16 where their matrix has 16 bits, as the other rows of the table are f16 or less; and where the
/// other products of the table multiply f16 by quantised weights, too.
fn pack_logits(graph: &mut Graph, products: Products) {
    let Graph { steps, values, .. } = graph;
    for step in steps.iter_mut().filter(|step| !step.side.is_host()) {
        let Action::Product(product) = &mut step.action else { continue };
        let whole = values[product.x.0].cols.is_multiple_of(halves::GROUP);
        let packs = |dtype: DType| is_half(dtype) || (dtype.is_quantised() && products == Products::Packed);
        let fits = whole && product.parts.iter().all(|part| packs(part.matrix.dtype));
        product.packed =
            fits && product.rows == RowSet::Logits && product.soft_cap == 0.0 && !product.unhalved;
    }
}

/// What the reader of a product that leaves f16 has to know.
struct LeftInF16 {
    scales_of: Value,
    bias: Option<BufferId>,
}

/// Whether the product of a step may leave its output in f16. Its input has to be a norm's output: its size is known, so
/// that the product of usable weights stays far below 65504. A larger one becomes an infinity, and that a NaN in the
/// results, which is reported.
fn can_leave_f16(graph: &Graph, step: &Step) -> Option<LeftInF16> {
    let product = plain_product(step)?;
    let is_normed = |step: &Step| matches!(&step.action, Action::Norm { out, rows: RowSet::All, .. } if *out == product.x);
    let part = &product.parts[0];
    let can = part.matrix.dtype != DType::F32
        && product.soft_cap == 0.0
        && !product.unhalved
        && graph.steps.iter().any(is_normed);
    can.then_some(LeftInF16 { scales_of: product.x, bias: part.bias })
}

/// The product of a step leaves its output in f16, without its bias.
fn leave_f16(step: &mut Step) {
    if let Action::Product(product) = &mut step.action {
        product.leaves_f16 = true;
        product.parts[0].bias = None;
    }
}

/// An activation reads the f16 output of the product before it, applies its scales and adds its bias, if its own output
/// is f16 too.
fn finish_in_activation(graph: &mut Graph) {
    for at in 0..graph.steps.len().saturating_sub(1) {
        let Some(left) = can_leave_f16(graph, &graph.steps[at]) else { continue };
        let Action::Activate { x, out, .. } = graph.steps[at + 1].action else { continue };
        let written = graph.steps[at].action.writes();
        let in_f16 = |how: Read| matches!(how, Read::Input(dtype, RowSet::All) if dtype != DType::F32);
        let mut reads = graph.steps.iter().flat_map(|step| step.action.reads());
        if written != [x] || graph.uses(x) != 1 || !reads.all(|(value, how)| value != out || in_f16(how)) {
            continue;
        }
        leave_f16(&mut graph.steps[at]);
        if let Action::Activate { unfinished, .. } = &mut graph.steps[at + 1].action {
            let biases = left.bias.into_iter().collect();
            *unfinished = Some(Unfinished { scales_of: left.scales_of, biases });
        }
    }
}

/// Whoever writes K and V to the cache as they are reads the f16 outputs of their products, and adds the biases. Caches of
/// int8 are written from f32.
fn finish_in_cache(graph: &mut Graph) {
    for at in 0..graph.steps.len() {
        let Action::RopeKv { qkv, q: None, rotation, heads, .. } = &graph.steps[at].action else { continue };
        let plain = rotation.rope.is_none() && rotation.norms.is_none() && heads.dim.is_multiple_of(4);
        let plain = plain && !graph.steps[at].side.is_host();
        let qkv = *qkv;
        let writers: Vec<usize> =
            (0..graph.steps.len()).filter(|i| graph.steps[*i].action.writes().contains(&qkv)).collect();
        let left: Vec<LeftInF16> =
            writers.iter().filter_map(|i| can_leave_f16(graph, &graph.steps[*i])).collect();
        let [k, v] = &left[..] else { continue };
        let alike = k.scales_of == v.scales_of && k.bias.is_some() == v.bias.is_some();
        if !plain || writers.len() != 2 || !alike {
            continue;
        }
        let unfinished_kv =
            Unfinished { scales_of: k.scales_of, biases: [k.bias, v.bias].into_iter().flatten().collect() };
        for i in writers {
            leave_f16(&mut graph.steps[i]);
        }
        if let Action::RopeKv { unfinished, .. } = &mut graph.steps[at].action {
            *unfinished = Some(unfinished_kv);
        }
    }
}
