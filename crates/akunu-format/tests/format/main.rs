mod growth;
mod hostile_gguf;
mod imatrix;
mod oracle_blocks;
mod quantise_error;
mod real_blocks;
mod round_trip;
mod split_gguf;
