mod bf16;
mod common;
mod pool;
mod quantised;
mod reference;
mod same_bits;
mod small;
