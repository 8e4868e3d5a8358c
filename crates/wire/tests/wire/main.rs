//! The room from outside: what is emitted parses back, another implementation agrees, every reason
//! to refuse has its limit, and nothing a stranger sends does harm.

mod fragments;
mod hostile;
mod oracle;
mod reasons;
mod round_trip;
mod segmentation;
mod strategies;
