//! What `launches` says, without compiling any of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use akunu_kernels::{Chip, cuda_text, launches};
use akunu_plan::params::NormParams;
use akunu_plan::table::{RowBounds, RowMeaning};
use akunu_plan::{BufferId, CommandBuilder, DispatchTable, Kernel, NormOut, RowSet, TableIo};

const CHIP: Chip = Chip { units: 132, shared_bytes: 200 << 10, tensor_cores: true, copies: true };

fn table(kernel: Kernel, params: impl bytemuck::NoUninit, rows: usize) -> DispatchTable {
    let builder = CommandBuilder::new(kernel).params(params);
    let builder = kernel.bindings().iter().fold(builder, |builder, _| builder.bind(BufferId(0)));
    DispatchTable {
        name: "test",
        commands: vec![builder.build()],
        labels: vec!["test".into()],
        rows,
        logit_rows: 1,
        steps: 1,
        io: TableIo { rows: BufferId(0), logit_rows: BufferId(0), tokens: BufferId(0), logits: BufferId(0) },
        bounds: RowBounds { meaning: RowMeaning::Token, vocab: 1, capacity: 1, slots: 1 },
    }
}

#[test]
fn a_function_is_the_same_for_every_layer_and_another_for_other_shapes() {
    let kernel = Kernel::RmsNorm { out: NormOut::Q8, rows: RowSet::All };
    let of = |cols, rows, epsilon| {
        let table = table(kernel, NormParams { cols, epsilon }, rows);
        launches(&table.commands[0], &table, &CHIP).unwrap().remove(0)
    };
    let norm = of(2048, 1, 1e-5);
    assert_eq!(norm.function, of(2048, 7, 1e-6).function);
    assert_ne!(norm.function, of(4096, 1, 1e-5).function);
    assert_eq!((norm.groups, norm.threads), ([1, 1, 1], 512));
    assert_eq!(of(2048, 7, 1e-5).groups, [1, 7, 1]);
}

#[test]
fn a_text_has_its_symbol_its_constants_and_its_arguments() {
    let kernel = Kernel::RmsNorm { out: NormOut::Q8, rows: RowSet::All };
    let table = table(kernel, NormParams { cols: 96, epsilon: 1e-5 }, 1);
    let launch = launches(&table.commands[0], &table, &CHIP).unwrap().remove(0);
    let text = cuda_text(&launch.function);
    for part in ["rms_norm_q8_96(\n    u8* a0,", "#define COLS 96u", "in.weight = a1;", "in.out_q8 = a2;"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}
