//! The turns of Events on machines.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::limiter::Limiter;
use super::waiting::Waiting;
use super::{Addressed, Destination, EventLimits};

/// The limit on Events that wait for their turn. Beyond it, the limiter summarizes the Events for each machine.
const MAX_IN_LINE: usize = 64;

/// The interval between reports about dropped Events.
const LEFT_OUT_REPORTED: Duration = Duration::from_mins(1);

/// The Events of one cluster that are waiting to be written.
pub(super) struct InLine {
    waiting: mpsc::Receiver<Box<Waiting>>,
    /// Whether the channel can still deliver Events.
    is_open: bool,
    limiter: Limiter<Waiting>,
    /// The Events that wait for a turn, with their memory.
    due: VecDeque<Box<Waiting>>,
    /// Waits for the turn of the first Event, which keeps its place in the queue that all clusters share. The wait is a
    /// separate task, because this queue is not polled while the cluster's writes hang. Otherwise, all clusters would
    /// wait for a turn that is not used.
    turn: JoinSet<()>,
    look: Interval,
    limits: EventLimits,
}

impl InLine {
    pub(super) fn new(waiting: mpsc::Receiver<Box<Waiting>>, limits: EventLimits) -> Self {
        let mut look = interval(LEFT_OUT_REPORTED);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            waiting,
            is_open: true,
            limiter: Limiter::new(limits.lines.clone()),
            due: VecDeque::new(),
            turn: JoinSet::new(),
            look,
            limits,
        }
    }

    /// Returns the next Event to write. `None` after the last Event.
    pub(super) async fn next(&mut self) -> Option<Addressed> {
        loop {
            if self.due.is_empty() && !self.is_open {
                return None;
            }
            if !self.due.is_empty() && self.turn.is_empty() {
                let (rate, cluster) = (self.limits.rate.clone(), self.limits.cluster.clone());
                self.turn.spawn(async move { rate.take(&cluster).await });
            }
            tokio::select! {
                biased;
                Some(_) = self.turn.join_next() => {
                    if let Some(waiting) = self.due.pop_front() {
                        return Some(waiting.take());
                    }
                }
                waiting = self.waiting.recv(), if self.is_open => match waiting {
                    None => self.is_open = false,
                    Some(waiting) => match waiting.cluster() {
                        Destination::Management => self.admit(waiting),
                        Destination::Workload => return Some(waiting.take()),
                    },
                },
                _ = self.look.tick() => {
                    let room = MAX_IN_LINE.saturating_sub(self.due.len());
                    self.due.extend(self.limiter.left_out(Instant::now(), room));
                }
            }
        }
    }

    fn admit(&mut self, event: Box<Waiting>) {
        let now = Instant::now();
        let has_room = self.due.len() < MAX_IN_LINE;
        self.due.extend(self.limiter.admit(event, has_room, now));
    }
}
