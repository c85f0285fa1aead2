mod http;
mod stdio;
