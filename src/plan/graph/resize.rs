//! Changes the size of a value.

use super::builder::Graph;
use super::value::ValueId;
use crate::base::{Error, Result};

impl Graph {
    /// Gives `value` another size, as for a batch or sequence of another length. All statements
    /// about it stay.
    ///
    /// It must still fit into its parent, and its views into it: grow parents first, and shrink
    /// views first. Takes time linear in the number of its views and gaps.
    pub fn resize(&mut self, value: ValueId, size: u64) -> Result<()> {
        self.known(value)?;
        let text = format!("{} cannot have {size} bytes", self.value_text(value.0));
        let arenas = self.problem.arenas().len();
        let buffer = &mut self.values[value.index()].buffer;
        let before = std::mem::replace(&mut buffer.size, size);
        let checked = buffer.check(arenas).map_err(|e| e.context(&text));
        buffer.size = before;
        checked?;

        let refuse = |why: String| Err(Error::invalid(format!("{text}: {why}")));
        let at = self.views.find(value.0).offset;
        let views: Vec<u32> = self.views.of(value.0).collect();
        for view in views {
            let offset = self.views.find(view).offset - at;
            let end = offset + self.values[view as usize].buffer.size;
            if end > size {
                let view = self.value_text(view);
                return refuse(format!("its view {view} is bytes [{offset}, {end}) of it; resize that first"));
            }
        }
        let parent = self.views.parent(value.0);
        if let Some(within) = self.values.get(parent as usize).map(|p| p.buffer.size) {
            let offset = at - self.views.find(parent).offset;
            if size > within - offset {
                let parent = self.value_text(parent);
                return refuse(format!(
                    "it is a view of {parent} from byte {offset} on, which has {within} bytes; resize that first"
                ));
            }
        }
        self.values[value.index()].buffer.size = size;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::plan::{Placement, Value};

    #[test]
    fn sizes_change_and_views_stay_inside() {
        let mut graph = Graph::new();
        let root = graph.add_value(Value::new(100)).unwrap();
        let view = graph.add_value(Value::new(40)).unwrap();
        let inner = graph.add_value(Value::new(10)).unwrap();
        graph.add_op(None, &[], &[root]).unwrap();
        graph.view(inner, view, 20).unwrap();
        graph.view(view, root, 50).unwrap();

        let refused = |graph: &mut Graph, value, size, says: &str| {
            let before = graph.lower().unwrap();
            let e = graph.resize(value, size).unwrap_err();
            assert!(e.message.contains(says), "{}", e.message);
            assert_eq!(graph.lower().unwrap(), before);
        };
        refused(&mut graph, root, 89, "bytes [50, 90) of it");
        refused(&mut graph, view, 51, "which has 100 bytes");
        refused(&mut graph, view, 29, "bytes [20, 30) of it");
        refused(&mut graph, inner, 21, "which has 40 bytes");
        refused(&mut graph, root, (1 << 62) + 1, "2^62");
        refused(&mut graph, ValueId(3), 1, "does not exist");

        graph.resize(root, 90).unwrap();
        graph.resize(view, 30).unwrap();
        graph.resize(view, 40).unwrap();
        graph.resize(inner, 20).unwrap();
        graph.resize(inner, 0).unwrap();
        let lowered = graph.lower().unwrap();
        assert_eq!(lowered.problem.buffers().iter().map(|b| b.size).collect::<Vec<_>>(), [90]);
        assert!(matches!(lowered.placements[2], Placement::In { offset: 70, .. }));
    }
}
