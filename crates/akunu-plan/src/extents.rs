//! What a command may touch, from its parameters: devices check it once, when a table is prepared, so that kernels can go
//! through pointers.

use crate::params::{
    AnglesParams, ArgmaxParams, AttentionParams, ElementParams, EmbedParams, GluMatmulParams, KvMoveParams,
    MatmulParams, NormParams, QkvParams, RopeKvParams, SampleParams, UnpackParams,
};
use crate::{
    DType, DispatchCommand, DispatchTable, Kernel, KvType, NormOut, Rope, Row, RowSet, halves, q8, sample,
};

/// Bytes from each binding on, in the order of [`Kernel::bindings`]; or what is wrong with the parameters.
pub fn extents(table: &DispatchTable, command: &DispatchCommand) -> Result<Vec<u64>, String> {
    let mut e = Extents { table, bytes: Vec::with_capacity(8) };
    match command.kernel {
        Kernel::Embed { weight } => e.embed(command.params(), weight)?,
        Kernel::RopeAngles => {
            let p: AnglesParams = command.params();
            e.f32s(1, p.pairs).rows().f32s(table.rows, 2 * u64::from(p.pairs));
        }
        Kernel::RmsNorm { out, rows } => {
            let p: NormParams = command.params();
            let count = e.count(rows);
            e.f32s(table.rows, p.cols).f32s(1, p.cols).outputs(out, count, p.cols.into())?;
            if rows == RowSet::Logits {
                e.u32s(table.logit_rows);
            }
        }
        Kernel::NormAdd => {
            let p: NormParams = command.params();
            e.f32s(table.rows, p.cols).f32s(1, p.cols).f32s(table.rows, p.cols).f32s(table.rows, p.cols);
        }
        Kernel::Matmul { weight, q8, bias, residual, rows, scaled, norm, .. } => {
            let p: MatmulParams = command.params();
            let rows = e.count(rows);
            e.matmul(&p, weight, q8, rows, bias, residual)?;
            e.squares(scaled, rows, p.inputs)?;
            if let Some(out) = norm {
                e.f32s(1, p.outputs).outputs(out, rows, p.outputs.into())?.squares(true, rows, p.outputs)?;
            }
        }
        Kernel::Qkv { weight, q8, bias, scaled, .. } => {
            let p: QkvParams = command.params();
            e.qkv(p, weight, q8, bias)?;
            e.squares(scaled, table.rows, p.inputs)?;
        }
        Kernel::GluMatmul { weight, q8, out, scaled, .. } => {
            let p: GluMatmulParams = command.params();
            e.input(q8, table.rows, p.inputs)?;
            e.weight(weight, p.inputs, p.outputs)?.weight(weight, p.inputs, p.outputs)?;
            e.outputs(out, table.rows, p.outputs.into())?.squares(scaled, table.rows, p.inputs)?;
        }
        Kernel::Glu { out, .. } => {
            let p: ElementParams = command.params();
            e.f32s(table.rows, p.cols).f32s(table.rows, p.cols).outputs(out, table.rows, p.cols.into())?;
        }
        Kernel::Quantise => {
            let p: ElementParams = command.params();
            e.f32s(table.rows, p.cols).outputs(NormOut::Q8, table.rows, p.cols.into())?;
        }
        Kernel::Halve => {
            let p: ElementParams = command.params();
            e.f32s(table.rows, p.cols).outputs(NormOut::F16, table.rows, p.cols.into())?;
        }
        Kernel::Unpack { weight } => {
            let p: UnpackParams = command.params();
            e.weight(weight, p.inputs, p.outputs)?.f16s(p.outputs.into(), p.inputs)?;
        }
        Kernel::HalfMatmul { bias, residual } => e.half_matmul(&command.params(), bias, residual)?,
        Kernel::RopeKv { qk_norm, kv, .. } => e.rope_kv(command.params(), qk_norm, kv)?,
        Kernel::Attention { kv, out, rope } => e.attention(command.params(), kv, out, rope)?,
        Kernel::Argmax => e.argmax(command.params())?,
        Kernel::Sample => e.sample(command.params())?,
        Kernel::KvShift { kv, .. } => {
            let p: KvMoveParams = command.params();
            e.head(p.head_dim, p.rope_dims)?;
            e.cache(kv, p.kv_heads, p.head_dim, p.capacity)?.cache(kv, p.kv_heads, p.head_dim, p.capacity)?;
            e.f32s(1, p.rope_dims / 2).rows();
        }
        Kernel::KvCopy { kv } => {
            let p: KvMoveParams = command.params();
            e.cache(kv, p.kv_heads, p.head_dim, p.capacity)?.cache(kv, p.kv_heads, p.head_dim, p.capacity)?;
            e.rows();
        }
    }
    Ok(e.bytes)
}

struct Extents<'a> {
    table: &'a DispatchTable,
    bytes: Vec<u64>,
}

fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |a, b| a.saturating_mul(*b))
}

impl Extents<'_> {
    fn count(&self, rows: RowSet) -> usize {
        if rows == RowSet::Logits { self.table.logit_rows } else { self.table.rows }
    }

    fn push(&mut self, bytes: u64) -> &mut Self {
        self.bytes.push(bytes);
        self
    }

    fn f32s(&mut self, rows: usize, cols: impl Into<u64>) -> &mut Self {
        self.push(product(&[rows as u64, cols.into(), 4]))
    }

    fn u32s(&mut self, n: usize) -> &mut Self {
        self.push(product(&[n as u64, 4]))
    }

    fn rows(&mut self) -> &mut Self {
        self.push(product(&[self.table.rows as u64, Row::BYTES as u64]))
    }

    fn q8(&mut self, rows: usize, cols: u64) -> Result<&mut Self, String> {
        if !cols.is_multiple_of(q8::BLOCK as u64) {
            return Err(format!("q8 rows of {cols} elements are not whole blocks"));
        }
        let row = cols + cols / q8::BLOCK as u64 * 8;
        Ok(self.push(product(&[rows as u64, row])))
    }

    fn f16s(&mut self, rows: u64, cols: impl Into<u64>) -> Result<&mut Self, String> {
        let cols = cols.into();
        if !cols.is_multiple_of(halves::WHOLE as u64) {
            return Err(format!("f16 rows of {cols} elements are not whole pieces of 16 bytes"));
        }
        Ok(self.push(product(&[rows, cols, 2])))
    }

    fn outputs(&mut self, out: NormOut, rows: usize, cols: u64) -> Result<&mut Self, String> {
        if out.f32() {
            self.f32s(rows, cols);
        }
        if out.q8() {
            self.q8(rows, cols)?;
        }
        if out.f16() {
            self.f16s(rows as u64, cols)?.f32s(rows, 1_u64);
        }
        Ok(self)
    }

    /// A number for each block of 32 columns.
    fn squares(&mut self, bound: bool, rows: usize, cols: u32) -> Result<&mut Self, String> {
        if !bound {
            return Ok(self);
        }
        if cols == 0 || !cols.is_multiple_of(q8::BLOCK as u32) {
            return Err(format!("a norm of {cols} elements, not whole blocks, in a product"));
        }
        Ok(self.f32s(rows, cols / q8::BLOCK as u32))
    }

    fn input(&mut self, q8: bool, rows: usize, inputs: u32) -> Result<&mut Self, String> {
        if q8 { self.q8(rows, inputs.into()) } else { Ok(self.f32s(rows, inputs)) }
    }

    /// All planes of a weight.
    fn weight(&mut self, weight: DType, inputs: u32, outputs: u32) -> Result<&mut Self, String> {
        let planes = weight.plane_bytes(inputs as usize).filter(|_| inputs > 0);
        let planes = planes.ok_or_else(|| format!("rows of {inputs} are not whole {weight} blocks"))?;
        for row in &planes[..weight.planes()] {
            self.push(product(&[*row as u64, outputs.into()]));
        }
        Ok(self)
    }

    fn embed(&mut self, p: EmbedParams, weight: DType) -> Result<(), String> {
        if p.vocab < self.table.bounds.vocab {
            return Err(format!("{} embeddings for {} tokens", p.vocab, self.table.bounds.vocab));
        }
        let rows = self.table.rows;
        self.weight(weight, p.cols, p.vocab)?.rows().f32s(rows, p.cols);
        Ok(())
    }

    fn matmul(
        &mut self,
        p: &MatmulParams,
        weight: DType,
        q8: bool,
        rows: usize,
        bias: bool,
        residual: bool,
    ) -> Result<(), String> {
        if p.out_stride < p.outputs {
            return Err(format!("{} outputs are {} apart", p.outputs, p.out_stride));
        }
        // Rows are a stride apart, but the last one ends with its outputs.
        let elements =
            product(&[(rows as u64).saturating_sub(1), p.out_stride.into()]) + u64::from(p.outputs);
        self.input(q8, rows, p.inputs)?.weight(weight, p.inputs, p.outputs)?.f32s(1, elements);
        if bias {
            self.f32s(1, p.outputs);
        }
        if residual {
            self.f32s(1, elements);
        }
        Ok(())
    }

    fn half_matmul(&mut self, p: &MatmulParams, bias: bool, residual: bool) -> Result<(), String> {
        if p.out_stride < p.outputs || p.inputs == 0 || p.soft_cap != 0.0 {
            return Err(format!("{} by {} in f16, {} apart", p.inputs, p.outputs, p.out_stride));
        }
        let rows = self.table.rows;
        let elements =
            product(&[(rows as u64).saturating_sub(1), p.out_stride.into()]) + u64::from(p.outputs);
        self.f16s(rows as u64, p.inputs)?.f32s(rows, 1_u64).f16s(p.outputs.into(), p.inputs)?;
        self.f32s(1, elements);
        if bias {
            self.f32s(1, p.outputs);
        }
        if residual {
            self.f32s(1, elements);
        }
        Ok(())
    }

    fn qkv(&mut self, p: QkvParams, weight: DType, q8: bool, bias: bool) -> Result<(), String> {
        let rows = self.table.rows;
        self.input(q8, rows, p.inputs)?;
        for outputs in [p.q, p.k, p.v] {
            self.weight(weight, p.inputs, outputs)?;
        }
        self.f32s(rows, u64::from(p.q) + u64::from(p.k) + u64::from(p.v));
        if bias {
            self.f32s(1, p.q).f32s(1, p.k).f32s(1, p.v);
        }
        Ok(())
    }

    fn head(&self, head_dim: u32, rope_dims: u32) -> Result<(), String> {
        if head_dim == 0 || rope_dims > head_dim || !rope_dims.is_multiple_of(2) {
            return Err(format!("heads of {head_dim}, {rope_dims} of them turned"));
        }
        Ok(())
    }

    fn cache(
        &mut self,
        kv: KvType,
        kv_heads: u32,
        head_dim: u32,
        capacity: u32,
    ) -> Result<&mut Self, String> {
        let row = kv.row_bytes(head_dim as usize);
        let row = row.ok_or_else(|| format!("heads of {head_dim} are not whole {} blocks", kv.name()))?;
        let bounds = self.table.bounds;
        if bounds.capacity > capacity {
            return Err(format!("{} positions in a cache of {capacity}", bounds.capacity));
        }
        Ok(self.push(product(&[bounds.slots.into(), kv_heads.into(), capacity.into(), row as u64])))
    }

    fn rope_kv(&mut self, p: RopeKvParams, qk_norm: bool, kv: KvType) -> Result<(), String> {
        self.head(p.head_dim, p.rope_dims)?;
        let rows = self.table.rows;
        let dim = u64::from(p.head_dim);
        self.f32s(rows, (u64::from(p.heads) + 2 * u64::from(p.kv_heads)) * dim)
            .f32s(rows, p.rope_dims)
            .rows();
        self.f32s(rows, u64::from(p.heads) * dim);
        self.cache(kv, p.kv_heads, p.head_dim, p.capacity)?.cache(kv, p.kv_heads, p.head_dim, p.capacity)?;
        if qk_norm {
            self.f32s(1, dim).f32s(1, dim);
        }
        Ok(())
    }

    fn attention(
        &mut self,
        p: AttentionParams,
        kv: KvType,
        out: NormOut,
        rope: Option<Rope>,
    ) -> Result<(), String> {
        self.head(p.head_dim, p.rope_dims)?;
        if p.kv_heads == 0 || !p.heads.is_multiple_of(p.kv_heads) || p.heads == 0 {
            return Err(format!("{} heads over {} kv heads", p.heads, p.kv_heads));
        }
        let dim = u64::from(p.head_dim);
        let cols = u64::from(p.heads) * dim;
        let rows = self.table.rows;
        if rope.is_some() && rows > 1 {
            return Err(format!("attention that rotates, for {rows} rows; it can be for one only"));
        }
        let beside = if rope.is_some() { 2 * u64::from(p.kv_heads) * dim } else { 0 };
        self.f32s(rows, cols + beside);
        self.cache(kv, p.kv_heads, p.head_dim, p.capacity)?.cache(kv, p.kv_heads, p.head_dim, p.capacity)?;
        self.rows().outputs(out, rows, cols)?;
        if let Some(rope) = rope {
            self.f32s(rows, p.rope_dims);
            if rope.qk_norm {
                self.f32s(1, dim).f32s(1, dim);
            }
        }
        Ok(())
    }

    fn sample(&mut self, p: SampleParams) -> Result<(), String> {
        let least = sample::record_words(self.table.steps);
        if (p.stride as usize) < least {
            return Err(format!("records of {} words, which want {least}", p.stride));
        }
        self.argmax(ArgmaxParams { vocab: p.vocab, advance: p.advance })?;
        self.u32s(self.table.logit_rows.saturating_mul(p.stride as usize));
        Ok(())
    }

    fn argmax(&mut self, p: ArgmaxParams) -> Result<(), String> {
        if p.vocab == 0 || (p.advance == 1 && p.vocab > self.table.bounds.vocab) {
            return Err(format!("{} logits for a vocabulary of {}", p.vocab, self.table.bounds.vocab));
        }
        let (steps, asked) = (self.table.steps as u64 + 1, self.table.logit_rows);
        self.f32s(asked, p.vocab).push(product(&[steps, asked as u64, 4])).rows().u32s(asked);
        Ok(())
    }
}
