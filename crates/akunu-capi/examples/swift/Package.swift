// swift-tools-version:5.7
import PackageDescription

let package = Package(
    name: "Akunu",
    products: [.library(name: "Akunu", targets: ["Akunu"])],
    targets: [
        .systemLibrary(name: "CAkunu", pkgConfig: "akunu"),
        .target(name: "Akunu", dependencies: ["CAkunu"]),
        .executableTarget(name: "Story", dependencies: ["Akunu"]),
    ]
)
