//! Many short lists in two vectors.

/// Lists of indices, by list number. `ends` never falls; its last entry is the length of `items`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    items: Vec<u32>,
    ends: Vec<usize>,
}

impl Lists {
    /// Adds a list.
    pub(super) fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.items.extend(list);
        self.ends.push(self.items.len());
    }

    /// The list with this number; empty if there is none.
    pub(super) fn get(&self, list: usize) -> &[u32] {
        let start = if list == 0 { 0 } else { self.ends.get(list - 1).copied().unwrap_or_default() };
        let end = self.ends.get(list).copied().unwrap_or_default();
        self.items.get(start..end).unwrap_or_default()
    }

    /// Makes `lists` lists from pairs (list, item), each in the order of the pairs.
    pub(super) fn grouped(lists: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Lists {
        let mut at = vec![0usize; lists + 1];
        for (list, _) in pairs.clone() {
            at[list as usize + 1] += 1;
        }
        for i in 0..lists {
            at[i + 1] += at[i];
        }
        let ends = at[1..].to_vec();
        let mut items = vec![0; at[lists]];
        for (list, item) in pairs {
            let next = &mut at[list as usize];
            items[*next] = item;
            *next += 1;
        }
        Lists { items, ends }
    }
}
