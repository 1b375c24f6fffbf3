//! The machine's NUMA nodes: how much memory each has, and which one a device is near to.

#![deny(unsafe_code, clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// A node that has memory and processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// The system's number for it; numbers may be missing.
    pub id: u32,
    /// Its memory, bytes; where this process's control group may use less than all nodes have, its
    /// share of that.
    pub bytes: u64,
}

/// The nodes in the order of their numbers, at least one: if the system lists none, node 0 with all
/// of the memory. Nodes without processors are left out: device memory shows up as such nodes.
pub fn nodes() -> Vec<NumaNode> {
    nodes_under(Path::new("/"))
}

/// The node that a PCI device is near to, by the address that CUDA gives (`0000:1B:00.0`); `None`
/// where the system does not know.
pub fn node_of_pci(address: &str) -> Option<u32> {
    node_of_pci_under(Path::new("/"), address)
}

/// Like [`nodes`], with the system's files under `root` instead of `/`.
pub fn nodes_under(root: &Path) -> Vec<NumaNode> {
    let most = group_limit(root).unwrap_or(u64::MAX);
    let mut found: Vec<NumaNode> = fs::read_dir(root.join("sys/devices/system/node"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let processors = read(&entry.path().join("cpulist"))?;
            let bytes = total(&read(&entry.path().join("meminfo"))?)?;
            (!processors.is_empty() && bytes > 0).then_some(NumaNode { id, bytes })
        })
        .collect();
    found.sort_by_key(|n| n.id);
    if found.is_empty() {
        let bytes = read(&root.join("proc/meminfo")).and_then(|text| total(&text)).unwrap_or(0);
        found.push(NumaNode { id: 0, bytes });
    }
    share(&mut found, most);
    found
}

/// Divides the usable memory, `most`, over the nodes in proportion to what each has.
fn share(nodes: &mut [NumaNode], most: u64) {
    let there: u128 = nodes.iter().map(|n| u128::from(n.bytes)).sum();
    if there <= u128::from(most) {
        return;
    }
    for node in nodes {
        // Below 2^128, as both are below 2^64; not above `node.bytes`, as `most < there`.
        node.bytes = (u128::from(node.bytes) * u128::from(most) / there) as u64;
    }
}

/// Like [`node_of_pci`], with the system's files under `root` instead of `/`.
pub fn node_of_pci_under(root: &Path, address: &str) -> Option<u32> {
    // A name, not a path.
    if address.is_empty() || !address.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.') {
        return None;
    }
    let path = root.join("sys/bus/pci/devices").join(address.to_ascii_lowercase()).join("numa_node");
    // -1 where there is none.
    read(&path)?.parse().ok()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// The bytes of a line `MemTotal: 24684084 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.contains("MemTotal:"))?;
    let kib = line.split("MemTotal:").nth(1)?.split_whitespace().next()?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// How much memory this process's control group may use, if it is limited.
fn group_limit(root: &Path) -> Option<u64> {
    let mut least = None;
    let mut note = |path: &Path| {
        // `max` where there is no limit; a huge number in the first version.
        let limit = read(path).and_then(|text| text.parse::<u64>().ok());
        least = [least, limit].into_iter().flatten().min();
    };
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mount = root.join(mount);
        let own = mount.join(group.trim_start_matches('/'));
        // A limit holds for all groups below, too. In a container the own group may be the mount
        // itself.
        own.ancestors().take_while(|dir| dir.starts_with(&mount)).for_each(|dir| note(&dir.join(file)));
    }
    least.filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory that stands for `/`, removed at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let dir = std::env::temp_dir().join(format!("gpumem-numa-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            assert!(fs::create_dir_all(&dir).is_ok());
            Root(dir)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            assert!(path.parent().is_some_and(|dir| fs::create_dir_all(dir).is_ok()));
            assert!(fs::write(path, text).is_ok());
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn node(id: u32, bytes: u64) -> NumaNode {
        NumaNode { id, bytes }
    }

    #[test]
    fn nodes_are_those_with_memory_and_processors() {
        let root = Root::new("nodes");
        root.put("proc/meminfo", "MemTotal:       3000 kB\nMemFree: 1 kB\n");
        assert_eq!(nodes_under(&root.0), [node(0, 3000 << 10)], "no nodes in the system's files");
        for (id, processors, kib) in [(10, "8-15", 700), (2, "0-7", 900), (3, "", 5000), (4, "16", 0)] {
            root.put(&format!("sys/devices/system/node/node{id}/cpulist"), &format!("{processors}\n"));
            let text = format!("Node {id} MemTotal:       {kib} kB\nNode {id} MemFree:        1 kB\n");
            root.put(&format!("sys/devices/system/node/node{id}/meminfo"), &text);
        }
        root.put("sys/devices/system/node/online", "2-4,10\n");
        assert_eq!(nodes_under(&root.0), [node(2, 900 << 10), node(10, 700 << 10)]);
    }

    #[test]
    fn the_control_group_counts_where_it_is_smaller() {
        let root = Root::new("groups");
        root.put("proc/meminfo", "MemTotal:       3000 kB\n");
        root.put("proc/self/cgroup", "0::/a/b\n");
        root.put("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(nodes_under(&root.0), [node(0, 3000 << 10)]);
        root.put("sys/fs/cgroup/a/memory.max", "1048576\n");
        assert_eq!(nodes_under(&root.0), [node(0, 1 << 20)], "the limit of a group above");
        root.put("proc/self/cgroup", "5:cpu,memory:/x\n1:name=systemd:/y\n");
        root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
        assert_eq!(nodes_under(&root.0), [node(0, 4096)], "version 1, with the own group out of sight");
    }

    #[test]
    fn nodes_share_what_the_control_group_may_use() {
        let root = Root::new("shares");
        for (id, kib) in [(0, 300), (1, 100)] {
            root.put(&format!("sys/devices/system/node/node{id}/cpulist"), "0\n");
            root.put(&format!("sys/devices/system/node/node{id}/meminfo"), &format!("Node {id} MemTotal: {kib} kB\n"));
        }
        root.put("proc/self/cgroup", "0::/\n");
        root.put("sys/fs/cgroup/memory.max", &format!("{}\n", 400 << 10));
        assert_eq!(nodes_under(&root.0), [node(0, 300 << 10), node(1, 100 << 10)], "as much as there is");
        root.put("sys/fs/cgroup/memory.max", &format!("{}\n", 350 << 10));
        let nodes = nodes_under(&root.0);
        assert_eq!(nodes, [node(0, 350 * 1024 * 3 / 4), node(1, 350 * 1024 / 4)], "more than either has");
        root.put("sys/fs/cgroup/memory.max", "4098\n");
        assert_eq!(nodes_under(&root.0), [node(0, 3073), node(1, 1024)], "rounded down");
    }

    #[test]
    fn a_device_is_near_to_the_node_that_the_system_names() {
        let root = Root::new("pci");
        root.put("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n");
        root.put("sys/bus/pci/devices/0000:2c:00.0/numa_node", "-1\n");
        assert_eq!(node_of_pci_under(&root.0, "0000:1B:00.0"), Some(1));
        assert_eq!(node_of_pci_under(&root.0, "0000:2C:00.0"), None);
        assert_eq!(node_of_pci_under(&root.0, "0000:3D:00.0"), None);
        assert_eq!(node_of_pci_under(&root.0, "../0000:1b:00.0"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(nodes().iter().all(|n| n.bytes > 0) && !nodes().is_empty(), "{:?}", nodes());
    }
}
