//! The printed form of a table, for `akunu table` and snapshot tests.

use std::fmt::Write;

use crate::ops::Access;
use crate::{BufferId, BufferSpec, DispatchCommand, DispatchTable};

impl DispatchTable {
    /// One line per command: label, kernel, buffers (`>` marks written ones), parameters, and what it depends on in
    /// each step.
    pub fn render(&self, buffers: &[BufferSpec]) -> String {
        let mut text = format!(
            "{}: {} commands, {} rows, {} logit rows, {} steps\n",
            self.name,
            self.commands.len(),
            self.rows,
            self.logit_rows,
            self.steps
        );
        for (index, (command, label)) in self.commands.iter().zip(&self.labels).enumerate() {
            let bindings = self.describe_bindings(index, buffers).join(" ");
            let params: Vec<String> = command
                .describe_params()
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<28} {:<34} {bindings} | {} | {}",
                label,
                command.kernel.name(),
                params.join(" "),
                command.follows().join(" ")
            );
        }
        text
    }

    /// The bindings of a command, and the weights that are lent to slots for it: `streamed.ffn_up.weight<blk.3.ffn_up.weight`.
    pub fn describe_bindings(&self, command: usize, buffers: &[BufferSpec]) -> Vec<String> {
        let name = |id: BufferId| buffers.get(id.index()).map_or("?", |buffer| buffer.name.as_str());
        let lent = self.loans(command).map(|loan| format!("{}<{}", name(loan.slot), name(loan.weight)));
        self.commands[command].describe_bindings(buffers).into_iter().chain(lent).collect()
    }
}

impl DispatchCommand {
    /// `x=decode.normed`, `>out=decode.qkv+256`: names of the binding and of its buffer.
    pub fn describe_bindings(&self, buffers: &[BufferSpec]) -> Vec<String> {
        self.kernel
            .bindings()
            .iter()
            .zip(self.bindings())
            .map(|(slot, binding)| {
                let mark = if slot.access == Access::Read { "" } else { ">" };
                let name = buffers.get(binding.buffer.index()).map_or("?", |b| b.name.as_str());
                let offset = if binding.offset == 0 { String::new() } else { format!("+{}", binding.offset) };
                format!("{mark}{}={name}{offset}", slot.name)
            })
            .collect()
    }

    pub fn describe_params(&self) -> Vec<(&'static str, String)> {
        self.kernel.describe_params(&self.params)
    }
}
