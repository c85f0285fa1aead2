mod calls;
mod common;
mod limits;
mod masks;
mod schema;
