//! What can be asked of a manager.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::cancel::Cancel;
use super::policy::{LimitPolicy, OutOfMemoryPolicy};
use super::space::SpaceId;
use super::strategy::Strategy;
use super::terms::{Amount, Wait};

/// A request for a reservation.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many bytes.
    pub amount: Amount,
    /// Where.
    pub strategy: Strategy,
    /// How long to wait for them.
    pub wait: Wait,
    /// Ends the wait when triggered.
    pub cancel: Option<Cancel>,
    /// What an allocation that does not fit does.
    pub policy: LimitPolicy,
    /// What an allocation does if there is no memory for it; `None`: as the space says.
    pub out_of_memory: Option<OutOfMemoryPolicy>,
}

impl Request {
    /// This many bytes of a space, at once or not at all.
    pub fn exact(space: SpaceId, bytes: u64) -> Request {
        Request::new(Strategy::Space(space), Amount::Exact(bytes))
    }

    /// A request without waiting.
    pub fn new(strategy: Strategy, amount: Amount) -> Request {
        Request { amount, strategy, wait: Wait::No, cancel: None, policy: LimitPolicy::default(), out_of_memory: None }
    }

    /// The same request, waiting.
    pub fn wait(mut self, wait: Wait) -> Request {
        self.wait = wait;
        self
    }

    /// The same request, with a limit policy.
    pub fn policy(mut self, policy: LimitPolicy) -> Request {
        self.policy = policy;
        self
    }

    /// The same request, cancelled by this token.
    pub fn cancel(mut self, cancel: &Cancel) -> Request {
        self.cancel = Some(cancel.clone());
        self
    }
}
