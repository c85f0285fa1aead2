mod common;
mod costs;
mod encoders;
mod experts;
mod goldens;
mod listening;
mod plans;
mod tables;
