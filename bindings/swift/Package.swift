// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "Akunu",
    platforms: [.macOS(.v13), .iOS(.v16)],
    products: [.library(name: "Akunu", targets: ["Akunu"])],
    targets: [
        .systemLibrary(name: "CAkunu", pkgConfig: "akunu"),
        .target(name: "Akunu", dependencies: ["CAkunu"]),
        .executableTarget(name: "Story", dependencies: ["Akunu"]),
        .testTarget(name: "AkunuTests", dependencies: ["Akunu"]),
    ]
)
